//! Tests of the workflow.
