//! Tests of the rpc.
