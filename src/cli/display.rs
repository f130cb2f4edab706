//! What is seen while a run goes on: a tree redrawn in place, lines, JSON, or nothing. It holds what is on the screen.

use super::Size;
use super::arguments::Progress;
use super::error::Error;
use super::output::{self, Output};
use super::view::frame::{self, Look};
use super::view::line::Narrator;
use super::view::tree::Tree;
use crate::wire::v1::Event;
use crate::wire::v1::event::Payload;

/// Where lines go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// They are what was asked for.
    Data,
    /// They go along with something else.
    Talk,
}

enum Kind {
    Tree,
    Lines(Box<Narrator>, Target),
    Json(Target),
    Nothing,
}

/// The progress of a run.
pub struct Display {
    kind: Kind,
    tree: Tree,
    drawn_lines: usize,
}

impl Display {
    /// Makes one. `auto` is a tree where there is a terminal, and lines where there is none.
    pub fn new(progress: Progress, target: Target, has_terminal: bool, output: &Output) -> Self {
        let paint = if target == Target::Data { output.paint } else { output.talk_paint };
        let kind = match progress {
            _ if output.quiet && target == Target::Talk => Kind::Nothing,
            Progress::None => Kind::Nothing,
            Progress::Jsonl => Kind::Json(target),
            Progress::Tree => Kind::Tree,
            Progress::Auto if has_terminal => Kind::Tree,
            Progress::Auto | Progress::Plain => Kind::Lines(Box::new(Narrator::new(paint)), target),
        };
        Self { kind, tree: Tree::default(), drawn_lines: 0 }
    }

    /// Takes in an event.
    ///
    /// # Errors
    /// Stdout cannot be written.
    pub fn event(&mut self, event: &Event, output: &mut Output) -> Result<(), Error> {
        let (line, target) = match &mut self.kind {
            Kind::Nothing => return Ok(()),
            Kind::Tree => {
                self.tree.apply(event);
                return Ok(());
            }
            // Beside a result, half-typed words are noise: the turn's line has them whole.
            Kind::Lines(_, Target::Talk) if matches!(event.payload, Some(Payload::TextDelta(_))) => return Ok(()),
            Kind::Lines(narrator, target) => (narrator.line(event), *target),
            Kind::Json(target) => (Some(output::json_line(event)?), *target),
        };
        match (line, target) {
            (None, _) => Ok(()),
            (Some(line), Target::Data) => output.data(&line),
            (Some(line), Target::Talk) => {
                output.talk(&line);
                Ok(())
            }
        }
    }

    /// Draws the tree anew, if it is one.
    pub fn draw(&mut self, now_us: i64, size: Option<Size>, output: &mut Output) {
        if !matches!(self.kind, Kind::Tree) {
            return;
        }
        // The last column stays free: some terminals wrap there, and the lines drawn would be counted wrong.
        let width = size.map(|size| size.width.saturating_sub(1).max(20));
        let look = Look { width, height: size.map(|size| size.height), is_full: false, paint: output.talk_paint };
        let lines = frame::frame(&self.tree, now_us, &look);
        output.draw(&redraw(self.drawn_lines, &lines));
        self.drawn_lines = lines.len();
    }

    /// Takes the tree off the screen, so that something else can be said.
    pub fn clear(&mut self, output: &mut Output) {
        if self.drawn_lines > 0 {
            output.draw(&redraw(self.drawn_lines, &[]));
            self.drawn_lines = 0;
        }
    }

    /// Leaves the last picture: `last` as the daemon told it, else as the events did.
    pub fn finish(&mut self, last: Option<&Tree>, now_us: i64, size: Option<Size>, output: &mut Output) {
        if matches!(self.kind, Kind::Nothing | Kind::Json(_)) {
            return;
        }
        self.clear(output);
        let look = Look { width: size.map(|size| size.width), height: None, is_full: true, paint: output.talk_paint };
        let lines = frame::frame(last.unwrap_or(&self.tree), now_us, &look);
        if !lines.is_empty() {
            output.talk(&lines.join("\n"));
        }
    }
}

/// Returns what replaces the `drawn` lines above the cursor by `lines`, at once where the terminal can do that.
pub fn redraw(drawn: usize, lines: &[String]) -> String {
    let up = if drawn > 0 { format!("\x1b[{drawn}A") } else { String::new() };
    let body: String = lines.iter().map(|line| format!("{line}\n")).collect();
    format!("\x1b[?2026h{up}\r\x1b[J{body}\x1b[?2026l")
}
