//! Where output goes and in which form: data to stdout, talk to stderr.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use super::args::{Color, Format, Global};
use super::error::Error;

/// The two streams and how to use them.
pub struct Output {
    /// Form of the data.
    pub format: Format,
    /// Whether talk may be coloured.
    pub color: bool,
    quiet: bool,
}

impl Output {
    /// Decides by the options, the terminal and `NO_COLOR`.
    pub fn new(global: &Global) -> Self {
        let color = match global.color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        };
        Self { format: global.output, color, quiet: global.quiet }
    }

    /// Writes data as it is, with a newline at its end if it has none.
    ///
    /// # Errors
    /// If stdout cannot be written; a reader that went away is no error, but ends the command.
    pub fn data(&self, text: &str) -> Result<(), Error> {
        let mut out = io::stdout().lock();
        let newline = if text.ends_with('\n') || text.is_empty() { "" } else { "\n" };
        match write!(out, "{text}{newline}").and_then(|()| out.flush()) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Error { message: String::new(), code: 0 }),
            Err(error) => Err(Error::new(format!("error: stdout: {error}"))),
        }
    }

    /// Writes a document in the form asked for; `table` and `name` are made by the caller.
    ///
    /// # Errors
    /// As [`Output::data`].
    pub fn document(&self, value: &impl Serialize, table: impl FnOnce() -> String, name: impl FnOnce() -> String) -> Result<(), Error> {
        let broken = |error: String| Error::new(format!("error: the answer cannot be written: {error}"));
        let text = match self.format {
            Format::Table => table(),
            Format::Name => name(),
            Format::Json => serde_json::to_string_pretty(value).map_err(|error| broken(error.to_string()))?,
            Format::Jsonl => serde_json::to_string(value).map_err(|error| broken(error.to_string()))?,
            Format::Yaml => serde_yaml::to_string(value).map_err(|error| broken(error.to_string()))?,
        };
        self.data(&text)
    }

    /// Says something to the person.
    pub fn talk(&self, text: &str) {
        if !self.quiet && !text.is_empty() {
            self.say(text);
        }
    }

    /// Says something that must be said even if quiet was asked for.
    pub fn say(&self, text: &str) {
        // Nobody is left to be told that stderr is gone.
        let _ = writeln!(io::stderr().lock(), "{}", text.trim_end_matches('\n'));
    }
}
