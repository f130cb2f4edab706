//! Tests of the command line: what is read, what is shown, and whole commands against a daemon that answers from a script.

#[path = "cli/commands.rs"]
mod commands;
#[path = "cli/fake.rs"]
mod fake;
#[path = "cli/view.rs"]
mod view;
#[path = "cli/words.rs"]
mod words;
