//! The integration tests, in one binary: a link costs more than a test here.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::too_many_lines,
    reason = "a test may panic, says what it skips, and lists what it lists"
)]

mod cli;
mod daemon;
mod faults;
mod kernel;
mod power;
mod provider;
mod python;
mod rpc;
mod runtime;
mod scripts_over_http;
mod store;
mod stub;
mod support;
mod telemetry;
mod tidy;
mod tool;
mod workflow;
