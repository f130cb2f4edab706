//! A tool that plays a script: it takes its time, tells its progress, and answers what it is told to. It stands in for
//! slow and failing tools wherever those must be shown without one.

use std::fs::{DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use futures_util::future::BoxFuture;
use serde_json::Value;
use tokio::time::{Duration, sleep};

use super::watched::cancelled;
use super::{Ctx, Failure, Progress, Tool};
use crate::kernel::ScriptedTool;

/// The tool.
pub struct PlayedTool {
    script: ScriptedTool,
    log: Option<PathBuf>,
}

impl PlayedTool {
    /// Returns the tool of a script; its log, if any, lies in `data_dir`.
    ///
    /// # Errors
    /// If the log's name is more than a file name.
    pub fn new(script: ScriptedTool, data_dir: &Path) -> Result<Self, String> {
        let log = match &script.log {
            None => None,
            Some(name) if !name.contains('\0') && Path::new(name).file_name().is_some_and(|file| file == name.as_str()) => {
                Some(data_dir.join("tool-logs").join(name))
            }
            Some(name) => return Err(format!("log {name:?} must be a plain file name")),
        };
        Ok(Self { script, log })
    }
}

impl Tool for PlayedTool {
    #[expect(clippy::panic, reason = "the script asks for a panic, to show that one is contained")]
    fn run(&self, _args: Value, ctx: Ctx) -> BoxFuture<'static, Result<String, Failure>> {
        let (script, log) = (self.script.clone(), self.log.clone());
        Box::pin(async move {
            play(&script, &ctx).await?;
            if let Some(log) = log {
                // The effect that is counted across crashes: once it is on the disk, the tool has run.
                let line = format!("{} {} {}\n", ctx.run, ctx.call_id, ctx.idempotency_key);
                let written = tokio::task::spawn_blocking(move || append(&log, &line)).await;
                let written = written.unwrap_or_else(|error| Err(std::io::Error::other(error)));
                written.map_err(|error| Failure(format!("its log cannot be written: {error}")))?;
            }
            if let Some(message) = script.panics {
                panic!("{message}");
            }
            match script.fails {
                Some(message) => Err(Failure(message)),
                None => Ok(script.result),
            }
        })
    }
}

async fn play(script: &ScriptedTool, ctx: &Ctx) -> Result<(), Failure> {
    let step_ms = if script.progress_every_ms == 0 { script.takes_ms } else { script.progress_every_ms };
    let mut played_ms = 0;
    if ctx.token.is_cancelled() {
        return Err(cancelled());
    }
    while played_ms < script.takes_ms {
        let next_ms = step_ms.max(1).min(script.takes_ms - played_ms);
        tokio::select! {
            biased;
            () = ctx.token.cancelled() => return Err(cancelled()),
            () = sleep(Duration::from_millis(next_ms)) => played_ms += next_ms,
        }
        if script.progress_every_ms > 0 && script.total > 0 {
            // At most `total`, so it fits again; the product alone may not.
            let done = u128::from(script.total) * u128::from(played_ms) / u128::from(script.takes_ms);
            let done = u64::try_from(done).unwrap_or(script.total);
            (ctx.progress)(Progress { label: "scanned".to_owned(), done, total: script.total, unit: script.unit.clone() });
        }
    }
    Ok(())
}

fn append(path: &Path, line: &str) -> std::io::Result<()> {
    if let Some(dir) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    }
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    file.write_all(line.as_bytes())?;
    file.sync_all()
}
