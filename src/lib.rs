//! Wren runs trees of AI agents: every run is a journal, and everything else is a projection of the journal.
//!
//! The rooms, in the order in which a run's data passes through them.

#[macro_use]
mod crash;

pub mod cli;
pub mod config;
pub mod daemon;
pub mod kernel;
pub mod provider;
pub mod rpc;
pub mod runtime;
pub mod store;
pub mod telemetry;
pub mod tool;
pub mod wire;
pub mod workflow;
