//! The `wrenctl` program: hands the command line what it may not reach for itself, and exits with its code.

use std::process::ExitCode;

use clap::Parser;
use wren::cli::{self, Surroundings, args::Args};
use wren::daemon;

#[tokio::main]
async fn main() -> ExitCode {
    let surroundings = Surroundings {
        start_local: Box::new(|| Box::pin(daemon::local_for_command())),
        default_address: daemon::client_address(),
        schema_json: daemon::schema_json(),
        current_dir: std::env::current_dir().unwrap_or_default(),
    };
    ExitCode::from(cli::run(Args::parse(), surroundings).await)
}
