//! Measures a real `wrend` from outside: a small gRPC client, and the daemon's own processor time and memory from /proc.
//!
//! `wren_bench MODE` with the address of a scripted Chat Completions server in `STUB` prints one JSON line. The modes and
//! keys are told in `benches/README.md`. The daemon runs as users run it: durable SQLite, spans on, over a unix socket.

#![expect(missing_docs, reason = "a program")]

mod collector;
mod daemon;
mod door;
mod load;
mod modes;
mod stub;

use std::error::Error;
use std::io::Write;
use std::process::ExitCode;

use serde_json::{Value, json};

pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> ExitCode {
    // `cargo bench` adds a flag of its own.
    let mode = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let Some(mode) = mode else {
        let _ = writeln!(std::io::stderr(), "usage: STUB=HOST:PORT wren_bench MODE; the modes are told in benches/README.md");
        return ExitCode::from(2);
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&mode, &error),
    };
    match runtime.block_on(measure(&mode)) {
        Ok(mut line) => {
            line["peer"] = json!("wren");
            line["mode"] = json!(mode);
            let _ = writeln!(std::io::stdout(), "{line}");
            ExitCode::SUCCESS
        }
        Err(error) => failed(&mode, &*error),
    }
}

fn failed(mode: &str, error: &dyn Error) -> ExitCode {
    let _ = writeln!(std::io::stdout(), "{}", json!({"peer": "wren", "mode": mode, "error": error.to_string()}));
    ExitCode::FAILURE
}

async fn measure(mode: &str) -> Result<Value> {
    let stub = stub::Stub::from_environment()?;
    match mode {
        "a" => modes::sequence(&stub).await,
        "b" => modes::beside(&stub, 500).await,
        "b2000" => modes::beside(&stub, 2000).await,
        "c" => modes::fan(&stub).await,
        "d" => modes::cancel(&stub).await,
        "e" => modes::long(&stub).await,
        "f" => modes::start(&stub).await,
        "s" => modes::small(&stub).await,
        "submit" => modes::submit(&stub).await,
        "cancel1000" => load::cancel(&stub).await,
        "start10000" => load::start(&stub).await,
        "suspended10000" => load::suspended(&stub).await,
        "soak" => load::soak(&stub).await,
        "context" => load::context(&stub).await,
        "limiter" => load::limiter(&stub).await,
        "kills" => load::kills(&stub).await,
        other => Err(format!("no mode {other}").into()),
    }
}

/// Returns the median.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => values[count / 2],
        count => f64::midpoint(values[count / 2 - 1], values[count / 2]),
    }
}
