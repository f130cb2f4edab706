//! A tree as lines: one picture of a moment, cut to the terminal. Finished runs fold to one line unless all is asked for.

use super::Paint;
use super::text::{self, count, elapsed, fit, one_line, pad, pad_left, plural, usd};
use super::tree::{Index, Node, OpenCall, Spent, Tree};
use crate::wire::v1::{Outcome, RunState};

/// How a picture is to look.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Cells in a line; `None` for no cutting.
    pub width: Option<usize>,
    /// Lines at most; `None` for all.
    pub height: Option<usize>,
    /// Whether every run is shown, or finished ones fold.
    pub is_full: bool,
    /// Colours.
    pub paint: Paint,
}

const TITLE_CELLS_MIN: usize = 12;
const TITLE_CELLS_MAX: usize = 40;
/// What the rest of a line needs until it says what the run does.
const FIGURES_CELLS: usize = 70;
const HEAD_CELLS_MAX: usize = 60;
const ARGUMENT_CELLS: usize = 40;
const REASON_CELLS: usize = 160;
/// Deeper branches are drawn at this depth: the wall of depth is 8, and a line must end somewhere.
const DEPTH_MAX: usize = 64;

struct Row {
    branch: String,
    mark: String,
    head: String,
    turns: String,
    tokens: String,
    cost: String,
    tail: String,
    is_over: bool,
}

/// Returns the lines of a picture at the time `now_us`.
pub fn frame(tree: &Tree, now_us: i64, look: &Look) -> Vec<String> {
    let Some(root) = tree.root() else { return Vec::new() };
    let mut rows = Vec::new();
    branches(tree, root, "", now_us, look, &mut rows);
    let mut lines = header(tree, root, now_us, look);
    // One line for what is hidden, one for the cursor.
    let taken = lines.len() + 2;
    let hidden = look.height.map_or(0, |height| make_room(&mut rows, height.saturating_sub(taken).max(1)));
    lines.extend(aligned(&rows, look.paint));
    if hidden > 0 {
        lines.push(format!("   … {} not shown", plural(hidden, "more run")));
    }
    if look.is_full {
        lines.extend(reason(root).map(|why| format!("   {}", look.paint.yellow(&why))));
    }
    match look.width {
        Some(width) => lines.iter().map(|line| fit(line, width).into_owned()).collect(),
        None => lines,
    }
}

/// Returns the mark of a run's state.
pub fn mark(state: RunState, outcome: Outcome, paint: Paint) -> String {
    match (state, outcome) {
        (RunState::Ended, Outcome::Completed) => paint.green("✔"),
        (RunState::Ended, Outcome::Cancelled) => paint.yellow("⊘"),
        (RunState::Ended, Outcome::MaxTurns | Outcome::Budget | Outcome::MaxTokens | Outcome::Timeout) => paint.yellow("■"),
        (RunState::Ended, _) => paint.red("✘"),
        (RunState::Suspended, _) => paint.yellow("‖"),
        (RunState::Running, _) => paint.cyan("●"),
        (RunState::Cancelling, _) => paint.yellow("◌"),
        (RunState::Pending | RunState::Unspecified, _) => paint.dim("○"),
    }
}

/// Returns what a run's state is called: its outcome where it has one.
pub fn standing(state: RunState, outcome: Outcome) -> String {
    let state = text::enum_name(state.as_str_name(), "RUN_STATE_");
    let outcome = if outcome == Outcome::Unspecified { String::new() } else { text::enum_name(outcome.as_str_name(), "OUTCOME_") };
    match (state.as_str(), outcome.is_empty()) {
        ("ended", false) => outcome,
        ("suspended", false) => format!("suspended: {outcome}"),
        _ => state,
    }
}

/// The root's line, or two where it does not fit into one.
fn header(tree: &Tree, root: &Node, now_us: i64, look: &Look) -> Vec<String> {
    let paint = look.paint;
    let all = tree.subtree(0);
    let limits = root.limits;
    let of_money = limits.budget_usd_nanos.map_or(String::new(), |limit| format!(" of {}", usd(limit)));
    let of_turns = limits.max_turns.map_or(String::new(), |limit| format!("/{limit}"));
    let of_runs = limits.max_runs.map_or(String::new(), |limit| format!("/{limit}"));
    let name = if root.workflow.is_empty() { &root.agent } else { &root.workflow };
    let until = if root.end_us > 0 { root.end_us } else { now_us };
    let time = if root.start_us > 0 { format!(" {}", elapsed(until - root.start_us)) } else { String::new() };
    let mut parts = vec![
        format!("{} {} {}", mark(root.state, root.outcome, paint), paint.bold(&one_line(name)), root.run_id),
        format!("{}{time}", standing(root.state, root.outcome)),
        format!("{}{of_money}", cost(&all)),
        format!("turns {}{of_turns}", count(root.own.turns)),
        format!("{} tokens", count(all.tokens)),
        format!("runs {}{of_runs}", count(all.runs)),
    ];
    if all.written_off_usd_nanos > 0 {
        parts.push(format!("written off {}", usd(all.written_off_usd_nanos)));
    }
    if look.is_full && !root.children.is_empty() {
        parts.push(paint.dim(&format!("own {}", cost(&root.own))));
    }
    parts.extend(Some(activity(root, now_us)).filter(|text| !text.is_empty()));
    let line = parts.join("  ");
    if look.width.is_none_or(|width| text::width(&line) <= width) {
        return vec![line];
    }
    let figures = parts.split_off(parts.len().min(2));
    vec![parts.join("  "), format!("  {}", figures.join("  "))]
}

fn branches(tree: &Tree, parent: &Node, prefix: &str, now_us: i64, look: &Look, rows: &mut Vec<Row>) {
    if text::width(prefix) / 3 > DEPTH_MAX {
        return;
    }
    for (position, index) in parent.children.iter().enumerate() {
        let Some(node) = tree.node(*index) else { continue };
        let is_last = position + 1 == parent.children.len() && !parent.has_more;
        let folds = !look.is_full && node.is_over();
        rows.push(row(tree, *index, node, &format!("{prefix}{}", if is_last { "└─ " } else { "├─ " }), now_us, look));
        if !folds {
            branches(tree, node, &format!("{prefix}{}", if is_last { "   " } else { "│  " }), now_us, look, rows);
        }
    }
    if parent.has_more {
        rows.push(Row { head: "… deeper runs are not shown".to_owned(), ..Row::empty(format!("{prefix}└─ ")) });
    }
}

impl Row {
    fn empty(branch: String) -> Self {
        let (mark, head, turns, tokens, cost, tail) = Default::default();
        Self { branch, mark, head, turns, tokens, cost, tail, is_over: true }
    }
}

fn row(tree: &Tree, index: Index, node: &Node, branch: &str, now_us: i64, look: &Look) -> Row {
    let paint = look.paint;
    let folds = !look.is_full && node.is_over();
    // A folded line stands for its whole subtree, so that the column of dollars adds up to the root's either way.
    let spent = if folds { tree.subtree(index) } else { node.own };
    let title_cells =
        look.width.map_or(TITLE_CELLS_MAX, |width| width.saturating_sub(FIGURES_CELLS).clamp(TITLE_CELLS_MIN, TITLE_CELLS_MAX));
    let title = one_line(&node.title);
    let title = if title.is_empty() { String::new() } else { format!(" \"{}\"", fit(&title, title_cells)) };
    let more =
        if folds && spent.runs > 1 { format!("+{}", plural(usize::try_from(spent.runs - 1).unwrap_or(0), "run")) } else { String::new() };
    let turns = match (&node.asking, node.limits.max_turns) {
        (Some(asking), Some(limit)) => format!("turn {}/{limit}", asking.turn),
        (Some(asking), None) => format!("turn {}", asking.turn),
        (None, Some(limit)) if !node.is_over() => format!("turn {}/{limit}", node.own.turns.max(1)),
        _ => plural(usize::try_from(node.own.turns).unwrap_or(0), "turn"),
    };
    let doing = activity(node, now_us);
    let tail = [more, doing, reason(node).map(|why| paint.yellow(&why)).unwrap_or_default()];
    Row {
        branch: branch.to_owned(),
        mark: mark(node.state, node.outcome, paint),
        head: format!("{}{title}", paint.bold(&one_line(&node.agent))),
        turns,
        tokens: format!("{} tokens", count(spent.tokens)),
        cost: cost(&spent),
        tail: tail.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("  "),
        is_over: node.is_over(),
    }
}

fn cost(spent: &Spent) -> String {
    let about = if spent.is_estimated { "~" } else { "" };
    let more = if spent.is_cost_unknown { "+?" } else { "" };
    format!("{about}{}{more}", usd(spent.cost_usd_nanos))
}

fn aligned(rows: &[Row], paint: Paint) -> Vec<String> {
    let widest = |part: &dyn Fn(&Row) -> usize| rows.iter().map(part).max().unwrap_or(0);
    let heads = widest(&|row| text::width(&row.branch) + text::width(&row.head)).min(HEAD_CELLS_MAX);
    let (turns, tokens, costs) =
        (widest(&|row| text::width(&row.turns)), widest(&|row| text::width(&row.tokens)), widest(&|row| text::width(&row.cost)));
    let line = |row: &Row| {
        let head = pad(&row.head, heads.saturating_sub(text::width(&row.branch)));
        let columns = [head, pad(&row.turns, turns), pad_left(&row.tokens, tokens), pad_left(&row.cost, costs), row.tail.clone()];
        let mark = if row.mark.is_empty() { String::new() } else { format!("{} ", row.mark) };
        format!("{}{mark}{}", paint.dim(&row.branch), columns.join("  ")).trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// Leaves out finished runs first, the oldest before the others, then what is at the end. Returns how many.
fn make_room(rows: &mut Vec<Row>, most: usize) -> usize {
    let before = rows.len();
    let mut surplus = before.saturating_sub(most);
    rows.retain(|row| {
        let drops = surplus > 0 && row.is_over;
        surplus -= usize::from(drops);
        !drops
    });
    rows.truncate(most);
    before - rows.len()
}

/// Returns what a run does now.
fn activity(node: &Node, now_us: i64) -> String {
    if let Some(asking) = &node.asking {
        let again = if asking.attempt > 1 { format!(" again, attempt {}", asking.attempt) } else { String::new() };
        let why = if asking.trouble.is_empty() { String::new() } else { format!(" after {}", one_line(&asking.trouble)) };
        return format!("asking{again}{why} {}", elapsed(now_us - asking.since_us));
    }
    let spawns = node.calls.iter().filter(|call| call.is_spawn).count();
    let mut own = node.calls.iter().filter(|call| !call.is_spawn);
    match (own.next(), own.count(), spawns) {
        (Some(call), others, _) => {
            let more = if others > 0 { format!(" and {}", plural(others, "more call")) } else { String::new() };
            format!("{}{more} {}", doing(call), elapsed(now_us - call.since_us))
        }
        (None, _, 0) => String::new(),
        (None, _, spawns) => format!("waits for {}", plural(spawns, "run")),
    }
}

fn doing(call: &OpenCall) -> String {
    let about = if call.progress.is_empty() { hint(&call.args_json) } else { one_line(&call.progress) };
    let about = if about.is_empty() { String::new() } else { format!(" {about}") };
    format!("{}{about}", one_line(&call.tool))
}

/// Returns the first words among a call's arguments, which mostly say what it is about: a path, a pattern, a question.
pub fn hint(args_json: &str) -> String {
    let args: serde_json::Value = serde_json::from_str(args_json).unwrap_or_default();
    let first = args.as_object().and_then(|args| args.values().find_map(|value| value.as_str()));
    first.map_or_else(String::new, |words| fit(&one_line(words), ARGUMENT_CELLS).into_owned())
}

/// Returns why a run stopped, unless it completed.
pub fn reason(node: &Node) -> Option<String> {
    let stopped = matches!(node.state, RunState::Ended | RunState::Suspended);
    if !stopped || node.outcome == Outcome::Completed {
        return None;
    }
    let words = node.failure.as_ref().map_or("", |failure| &failure.message);
    Some(fit(&text::why(node.outcome, words), REASON_CELLS).into_owned())
}
