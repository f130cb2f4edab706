//! The integration tests, in one binary: a link costs more than a test here.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic, and says what it skips")]

mod cli;
mod daemon;
mod kernel;
mod provider;
mod python;
mod rpc;
mod runtime;
mod store;
mod stub;
mod support;
mod telemetry;
mod tidy;
mod tool;
mod workflow;
