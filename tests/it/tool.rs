//! Tests of the tool.
