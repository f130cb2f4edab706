//! Events to what people see: a tree of runs that is brought up to date event by event, and one line an event. Pure.

use std::collections::HashMap;

use crate::kernel::next::usd;
use crate::wire::v1;
use crate::wire::v1::event::Payload;

/// A tree of runs, as its events tell it.
#[derive(Default)]
pub struct TreeView {
    nodes: HashMap<String, Node>,
    root: Option<String>,
}

#[derive(Default)]
struct Node {
    agent: String,
    title: String,
    workflow: String,
    children: Vec<String>,
    turn: i32,
    turns: i32,
    turns_max: i32,
    budget: i64,
    tokens: i64,
    cost: i64,
    state: Mark,
    note: String,
    /// The calls under way, with their progress.
    calls: Vec<(String, String, String)>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Mark {
    #[default]
    Pending,
    Running,
    Suspended,
    Completed,
    Stopped,
    Cancelled,
}

impl Mark {
    fn sign(self) -> &'static str {
        match self {
            Self::Pending => "○",
            Self::Running => "●",
            Self::Suspended => "⏸",
            Self::Completed => "✔",
            Self::Stopped => "✘",
            Self::Cancelled => "◼",
        }
    }

    fn colored(self) -> String {
        let code = match self {
            Self::Pending => "2",
            Self::Running => "36",
            Self::Suspended => "33",
            Self::Completed => "32",
            Self::Stopped => "31",
            Self::Cancelled => "35",
        };
        format!("\x1b[{code}m{}\x1b[0m", self.sign())
    }
}

impl TreeView {
    /// Takes in the next event.
    pub fn apply(&mut self, event: &v1::Event) {
        let Some(payload) = &event.payload else { return };
        if let Payload::RunCreated(created) = payload {
            self.create(event, created);
            return;
        }
        let Some(node) = self.nodes.get_mut(&event.run_id) else { return };
        match payload {
            Payload::RunStarted(_) | Payload::RunResumed(_) => {
                node.state = Mark::Running;
                node.note.clear();
            }
            Payload::TurnStarted(turn) => node.turn = turn.turn,
            Payload::TurnEnded(turn) => {
                node.turns = turn.turn;
                node.tokens += turn.total_tokens;
                node.cost += turn.cost_usd_nanos;
                node.note.clear();
            }
            Payload::TurnAborted(turn) => {
                node.cost += turn.cost_usd_nanos + turn.written_off_usd_nanos;
                node.tokens += turn.input_tokens + turn.output_tokens;
                node.note = format!("turn {}: {}", turn.turn, turn.reason);
            }
            Payload::CallStarted(call) => {
                node.calls.retain(|(id, _, _)| *id != call.call_id);
                if call.effect != "spawn" {
                    node.calls.push((call.call_id.clone(), call.tool.clone(), String::new()));
                }
            }
            Payload::ToolProgress(progress) => {
                if let Some(call) = node.calls.iter_mut().find(|(id, _, _)| *id == progress.call_id) {
                    call.2.clone_from(&progress.text);
                }
            }
            Payload::CallEnded(call) => node.calls.retain(|(id, _, _)| *id != call.call_id),
            Payload::CancelRequested(_) => node.note = "cancelling".to_owned(),
            Payload::LimitsChanged(changed) => node.bound(changed.limits.as_ref()),
            Payload::RunSuspended(stopped) => node.stop(stopped.outcome(), stopped.failure.as_ref(), Mark::Suspended),
            Payload::RunEnded(ended) => node.stop(ended.outcome(), ended.failure.as_ref(), Mark::Stopped),
            Payload::RunCreated(_)
            | Payload::CallInDoubt(_)
            | Payload::ChildStarted(_)
            | Payload::ChildEnded(_)
            | Payload::MessageReceived(_)
            | Payload::TextDelta(_) => {}
        }
    }

    fn create(&mut self, event: &v1::Event, created: &v1::RunCreated) {
        let run = created.run.clone().unwrap_or_default();
        let mut node = Node { agent: run.agent, title: run.title, workflow: run.workflow_name, ..Node::default() };
        node.bound(run.limits.as_ref());
        self.nodes.insert(event.run_id.clone(), node);
        match self.nodes.get_mut(&event.parent_run_id) {
            Some(parent) => parent.children.push(event.run_id.clone()),
            None => {
                self.root.get_or_insert(event.run_id.clone());
            }
        }
    }

    /// Returns the tree as lines of at most `width` columns.
    pub fn lines(&self, width: usize, color: bool) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(root) = &self.root {
            self.add(root, "", "", &mut lines, width, color);
        }
        lines
    }

    fn add(&self, id: &str, lead: &str, below: &str, lines: &mut Vec<String>, width: usize, color: bool) {
        let Some(node) = self.nodes.get(id) else { return };
        let is_root = self.root.as_deref() == Some(id);
        let sign = if color { node.state.colored() } else { node.state.sign().to_owned() };
        let text = node.text(is_root, id, self);
        let room = width.saturating_sub(console::measure_text_width(lead) + 2);
        lines.push(format!("{lead}{sign} {}", console::truncate_str(&text, room, "…")));
        for (index, child) in node.children.iter().enumerate() {
            let last = index + 1 == node.children.len();
            let (branch, next) = if last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            self.add(child, &format!("{below}{branch}"), &format!("{below}{next}"), lines, width, color);
        }
    }

    fn sum(&self, id: &str, of: &dyn Fn(&Node) -> i64) -> i64 {
        self.nodes.get(id).map_or(0, |node| of(node) + node.children.iter().map(|child| self.sum(child, of)).sum::<i64>())
    }
}

impl Node {
    fn bound(&mut self, limits: Option<&v1::Limits>) {
        self.turns_max = limits.and_then(|limits| limits.max_turns).unwrap_or(0);
        self.budget = limits.and_then(|limits| limits.budget_usd_nanos).unwrap_or(0);
    }

    fn stop(&mut self, outcome: v1::Outcome, failure: Option<&v1::Failure>, mark: Mark) {
        self.calls.clear();
        self.state = match outcome {
            v1::Outcome::Completed => Mark::Completed,
            v1::Outcome::Cancelled => Mark::Cancelled,
            _ => mark,
        };
        self.note = match (outcome, failure) {
            (v1::Outcome::Completed, _) | (_, None) => String::new(),
            (other, Some(failure)) => format!("{}: {}", outcome_name(other), failure.message),
        };
    }

    fn text(&self, is_root: bool, id: &str, tree: &TreeView) -> String {
        let mut parts = Vec::new();
        if is_root {
            parts.push(format!("{} ({})", self.workflow, self.agent));
        } else {
            let title: String = self.title.chars().take(48).collect();
            let dots = if self.title.chars().count() > 48 { "…" } else { "" };
            parts.push(format!("{} \"{title}{dots}\"", self.agent));
        }
        let over = matches!(self.state, Mark::Completed | Mark::Stopped | Mark::Cancelled | Mark::Suspended);
        let turns = if over { self.turns } else { self.turn.max(self.turns) };
        parts.push(format!("turn {turns}/{}", self.turns_max));
        let (tokens, cost) = (tree.sum(id, &|node| node.tokens), tree.sum(id, &|node| node.cost));
        parts.push(format!("{tokens} tokens"));
        parts.push(if is_root { format!("{} of {}", usd(cost), usd(self.budget)) } else { usd(cost) });
        for (_, tool, progress) in self.calls.iter().take(2) {
            parts.push(if progress.is_empty() { tool.clone() } else { format!("{tool}: {progress}") });
        }
        if !self.note.is_empty() {
            parts.push(self.note.clone());
        }
        parts.join("  ")
    }
}

/// Returns an outcome's name as people read it.
pub fn outcome_name(outcome: v1::Outcome) -> String {
    outcome.as_str_name().trim_start_matches("OUTCOME_").to_ascii_lowercase()
}

/// Returns a state's name as people read it.
pub fn state_name(state: v1::RunState) -> String {
    state.as_str_name().trim_start_matches("RUN_STATE_").to_ascii_lowercase()
}

/// Returns an event as one line, or nothing for those that say nothing to a person.
pub fn line(event: &v1::Event) -> Option<String> {
    let at = event.time.as_ref().map(clock).unwrap_or_default();
    let run: String = event.run_id.chars().skip(event.run_id.chars().count().saturating_sub(6)).collect();
    let said = match event.payload.as_ref()? {
        Payload::RunCreated(created) => {
            let run = created.run.clone().unwrap_or_default();
            format!("{} created: {}", run.agent, run.title)
        }
        Payload::RunStarted(_) => return None,
        Payload::TurnStarted(turn) => format!("turn {} asks {}{}", turn.turn, turn.model, attempt(turn.attempt)),
        Payload::TurnEnded(turn) => {
            let estimated = if turn.estimated { " (estimated)" } else { "" };
            let stop = turn.stop().as_str_name().trim_start_matches("STOP_").to_ascii_lowercase();
            format!(
                "turn {} {stop}: {} in + {} out = {} tokens, {}, run {}{estimated}",
                turn.turn,
                turn.input_tokens,
                turn.output_tokens,
                turn.total_tokens,
                usd(turn.cost_usd_nanos),
                usd(turn.run_cost_usd_nanos)
            )
        }
        Payload::TurnAborted(turn) => {
            let lost =
                if turn.written_off_usd_nanos > 0 { format!(", {} written off", usd(turn.written_off_usd_nanos)) } else { String::new() };
            format!("turn {} came to nothing ({}): {}{lost}", turn.turn, turn.reason, turn.message)
        }
        Payload::CallStarted(call) => format!("{} {}{}", call.tool, short(&call.args_json, 80), attempt(call.attempt)),
        Payload::CallEnded(call) => {
            let verdict = if call.ok { "ok".to_owned() } else { format!("{}: {}", call.failure, short(&call.output, 100)) };
            format!("{} {} ms {verdict}", call.tool, call.elapsed_ms)
        }
        Payload::CallInDoubt(call) => format!("call {} is in doubt", call.call_id),
        Payload::ChildStarted(child) => format!("child {} started", child.agent),
        Payload::ChildEnded(child) => {
            format!("child ended {}, {} turns, {}", outcome_name(child.outcome()), child.turn_count, usd(child.subtree_cost_usd_nanos))
        }
        Payload::MessageReceived(message) => format!("{} says: {}", message.sender, short(&message.text, 100)),
        Payload::LimitsChanged(changed) => format!("limits changed by {}", changed.actor),
        Payload::RunSuspended(stopped) => {
            stopped_line("suspended", stopped.outcome(), stopped.failure.as_ref(), stopped.turn_count, stopped.cost_usd_nanos)
        }
        Payload::RunResumed(resumed) => format!("resumed ({})", resumed.cause),
        Payload::CancelRequested(cancel) => format!("cancel requested by {}: {}", cancel.actor, cancel.reason),
        Payload::RunEnded(ended) => stopped_line("ended", ended.outcome(), ended.failure.as_ref(), ended.turn_count, ended.cost_usd_nanos),
        Payload::TextDelta(delta) => delta.text.clone(),
        Payload::ToolProgress(progress) => format!("{}: {}", progress.tool, progress.text),
    };
    Some(format!("{at} {run} {said}"))
}

fn stopped_line(what: &str, outcome: v1::Outcome, failure: Option<&v1::Failure>, turns: i32, cost: i64) -> String {
    let why = failure.map(|failure| format!(": {}", failure.message)).unwrap_or_default();
    format!("{what} {}, {turns} turns, {}{why}", outcome_name(outcome), usd(cost))
}

fn attempt(attempt: i32) -> String {
    if attempt > 1 { format!(" (attempt {attempt})") } else { String::new() }
}

/// Returns a text on one line, within bounds.
pub fn short(text: &str, chars_max: usize) -> String {
    let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if flat.chars().count() <= chars_max { flat } else { format!("{}…", flat.chars().take(chars_max).collect::<String>()) }
}

/// Returns the time of day in UTC.
fn clock(time: &pbjson_types::Timestamp) -> String {
    let of_day = time.seconds.rem_euclid(86_400);
    format!("{:02}:{:02}:{:02}.{:03}", of_day / 3600, of_day / 60 % 60, of_day % 60, time.nanos / 1_000_000)
}
