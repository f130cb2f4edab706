//! Following a run's events to its end, also over a connection that breaks.

use std::io::Write;

use tonic::Code;

use super::args::Progress;
use super::client::Client;
use super::error::Error;
use super::output::Output;
use super::view::{self, TreeView};
use crate::wire::v1;

/// How often a broken stream is taken up again without any event in between.
const RECONNECTS_MAX: u32 = 5;

/// Follows a run and hands each event on, each once.
///
/// # Errors
/// Those of the daemon, once reconnecting has not helped.
pub async fn follow(
    client: &Client,
    mut request: v1::WatchRunRequest,
    mut each: impl FnMut(v1::Event) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut failures = 0;
    loop {
        let broken = match client.runs().watch_run(request.clone()).await {
            Err(status) => status,
            Ok(stream) => {
                let mut stream = stream.into_inner();
                loop {
                    match stream.message().await {
                        Ok(Some(response)) => {
                            failures = 0;
                            if let Some(event) = response.event {
                                request.after_tree_seq = request.after_tree_seq.max(event.tree_seq);
                                each(event)?;
                            }
                        }
                        Ok(None) => return Ok(()),
                        Err(status) => break status,
                    }
                }
            }
        };
        failures += 1;
        // Only a connection that broke is taken up again; what the daemon says is final.
        if !matches!(broken.code(), Code::Unavailable | Code::Unknown | Code::Internal) || failures > RECONNECTS_MAX {
            return Err(broken.into());
        }
        tokio::time::sleep(std::time::Duration::from_millis(200 * u64::from(failures))).await;
    }
}

/// Shows a run while it goes on.
pub struct Show {
    progress: Progress,
    tree: TreeView,
    drawn: usize,
    terminal: console::Term,
    color: bool,
}

impl Show {
    /// Decides how to show by the option and the terminal.
    pub fn new(progress: Progress, output: &Output) -> Self {
        let terminal = console::Term::stderr();
        let progress = match progress {
            Progress::Auto if terminal.is_term() => Progress::Tree,
            Progress::Auto => Progress::Plain,
            Progress::Tree | Progress::Plain | Progress::Jsonl | Progress::None => progress,
        };
        Self { progress, tree: TreeView::default(), drawn: 0, terminal, color: output.color }
    }

    /// Takes in and shows the next event.
    pub fn event(&mut self, event: &v1::Event, output: &Output) {
        self.tree.apply(event);
        let is_delta = matches!(event.payload, Some(v1::event::Payload::TextDelta(_)));
        match self.progress {
            Progress::None | Progress::Auto => {}
            Progress::Plain if is_delta => {}
            Progress::Plain => {
                if let Some(line) = view::line(event) {
                    output.talk(&line);
                }
            }
            Progress::Jsonl => output.talk(&serde_json::to_string(event).unwrap_or_default()),
            Progress::Tree if is_delta => {}
            Progress::Tree => self.draw(),
        }
    }

    /// Draws the tree over the one before. The last one stays in the scrollback.
    fn draw(&mut self) {
        let (rows, columns) = self.terminal.size();
        let width = if columns < 20 { 80 } else { usize::from(columns) };
        let mut lines = self.tree.lines(width, self.color);
        // What does not fit on the screen could not be drawn over.
        let fits = usize::from(rows).saturating_sub(1).max(4);
        if self.terminal.is_term() && lines.len() > fits {
            let hidden = lines.len() - fits + 1;
            lines.truncate(fits - 1);
            lines.push(format!("… {hidden} more"));
        }
        let mut frame = String::new();
        if self.drawn > 0 {
            frame.push_str(&format!("\x1b[{}A", self.drawn));
        }
        for line in &lines {
            frame.push_str(&format!("\r\x1b[2K{line}\n"));
        }
        // A terminal that is gone is nobody's loss.
        let _ = (&self.terminal).write_all(frame.as_bytes());
        self.drawn = lines.len().max(self.drawn);
    }
}
