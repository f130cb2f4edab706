//! Tests of the tidy.
