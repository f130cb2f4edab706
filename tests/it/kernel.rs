//! Tests of the kernel.
