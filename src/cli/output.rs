//! Where output goes and in which form: data to stdout, talk to stderr. It knows no runs.

use std::io::{self, Write};

use serde::Serialize;

use super::Surroundings;
use super::arguments::{Format, Global, When};
use super::error::Error;
use super::view::Paint;

/// The two streams with what was asked of them.
pub struct Output {
    stdout: Box<dyn Write + Send>,
    stderr: Box<dyn Write + Send>,
    /// The form of data.
    pub format: Format,
    /// Whether talk is kept to errors.
    pub quiet: bool,
    /// Whether a person reads stdout, so that what a model wrote must not steer the terminal.
    pub stdout_is_terminal: bool,
    /// The colours of stdout.
    pub paint: Paint,
    /// The colours of stderr.
    pub talk_paint: Paint,
}

impl Output {
    /// Takes the streams out of the surroundings.
    pub fn new(surroundings: &mut Surroundings, global: &Global) -> Self {
        let stderr_is_terminal = (surroundings.terminal)().is_some();
        let variable = &surroundings.variable;
        let colored = |is_terminal: bool| Paint::new(wants_color(global.color, is_terminal, variable.as_ref()));
        Self {
            paint: colored(surroundings.stdout_is_terminal),
            talk_paint: colored(stderr_is_terminal),
            stdout_is_terminal: surroundings.stdout_is_terminal,
            stdout: std::mem::replace(&mut surroundings.stdout, Box::new(io::sink())),
            stderr: std::mem::replace(&mut surroundings.stderr, Box::new(io::sink())),
            format: global.format,
            quiet: global.quiet,
        }
    }

    /// Writes text to stdout, with a line end if it has none.
    ///
    /// # Errors
    /// Stdout cannot be written.
    pub fn data(&mut self, text: &str) -> Result<(), Error> {
        self.stdout.write_all(text.as_bytes())?;
        if !text.is_empty() && !text.ends_with('\n') {
            self.stdout.write_all(b"\n")?;
        }
        Ok(self.stdout.flush()?)
    }

    /// Writes a document to stdout in the asked form, or what `human` and `names` make of it.
    ///
    /// # Errors
    /// Stdout cannot be written.
    pub fn document<T: Serialize>(&mut self, value: &T, human: impl FnOnce(Paint) -> String, names: &[String]) -> Result<(), Error> {
        let text = match self.format {
            Format::Table => human(self.paint),
            Format::Json => json_pretty(value)?,
            Format::Jsonl => json_line(value)?,
            Format::Yaml => serde_yaml::to_string(value).map_err(|error| Error::internal(&error))?,
            Format::Name => names.iter().map(|name| format!("{name}\n")).collect(),
        };
        self.data(&text)
    }

    /// Says something on stderr unless told to be quiet. A stderr that cannot be written stops nothing.
    pub fn talk(&mut self, text: &str) {
        if !self.quiet {
            self.insist(text);
        }
    }

    /// Says something on stderr in any case.
    pub fn insist(&mut self, text: &str) {
        let end = if text.ends_with('\n') { "" } else { "\n" };
        let _closed = write!(self.stderr, "{text}{end}").and_then(|()| self.stderr.flush());
    }

    /// Writes to stderr as it is, for what moves the cursor.
    pub fn draw(&mut self, text: &str) {
        let _closed = self.stderr.write_all(text.as_bytes()).and_then(|()| self.stderr.flush());
    }
}

/// Returns one line of JSON.
///
/// # Errors
/// The value cannot be written as JSON, which is a fault of this program.
pub fn json_line<T: Serialize>(value: &T) -> Result<String, Error> {
    serde_json::to_string(value).map_err(|error| Error::internal(&error))
}

/// Returns indented JSON.
///
/// # Errors
/// As [`json_line`].
pub fn json_pretty<T: Serialize>(value: &T) -> Result<String, Error> {
    serde_json::to_string_pretty(value).map_err(|error| Error::internal(&error))
}

fn wants_color(when: When, is_terminal: bool, variable: &dyn Fn(&str) -> Option<String>) -> bool {
    match when {
        When::Always => true,
        When::Never => false,
        When::Auto if variable("NO_COLOR").is_some() => false,
        When::Auto if variable("CLICOLOR_FORCE").is_some_and(|value| value != "0") => true,
        When::Auto => {
            let dumb = variable("TERM").is_some_and(|term| term == "dumb");
            is_terminal && !dumb && variable("CLICOLOR").is_none_or(|value| value != "0")
        }
    }
}
