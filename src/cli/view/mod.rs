//! Events and runs to text. Pure: what is shown depends on the arguments alone, the time included.

pub mod frame;
pub mod line;
pub mod table;
pub mod text;
pub mod transcript;
pub mod tree;

use console::Style;

/// Colours, or none. The text is the same either way, so nothing is said by colour alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paint {
    colored: bool,
}

impl Paint {
    /// Text without colours.
    pub const PLAIN: Self = Self { colored: false };

    /// Makes a paint.
    pub fn new(colored: bool) -> Self {
        Self { colored }
    }

    fn with(self, style: Style, text: &str) -> String {
        // Forced either way: whether there is colour was decided for this stream, not for the process.
        if self.colored && !text.is_empty() { style.force_styling(true).apply_to(text).to_string() } else { text.to_owned() }
    }

    /// Something wrong.
    pub fn red(self, text: &str) -> String {
        self.with(Style::new().red().bold(), text)
    }

    /// Something well.
    pub fn green(self, text: &str) -> String {
        self.with(Style::new().green(), text)
    }

    /// Something to look at.
    pub fn yellow(self, text: &str) -> String {
        self.with(Style::new().yellow(), text)
    }

    /// Something under way, or a mark.
    pub fn cyan(self, text: &str) -> String {
        self.with(Style::new().cyan(), text)
    }

    /// Something that matters.
    pub fn bold(self, text: &str) -> String {
        self.with(Style::new().bold(), text)
    }

    /// Something in the background.
    pub fn dim(self, text: &str) -> String {
        self.with(Style::new().dim(), text)
    }
}
