//! Rows and columns: lists of runs, one run in full, receipts of a cancel, limits, models, the daemon.

use super::Paint;
use super::frame::standing;
use super::line;
use super::text::{count, date_time, decimal_usd, elapsed, enum_name, fit, micros, one_line, pad, pad_left, usd, width, without_name};
use crate::wire::v1::{CancelReceipt, GetServerInfoResponse, KnownModel, Limits, Outcome, Rates, Run, RunState, Usage};

const TITLE_CELLS: usize = 48;

/// A column's heading and on which side it is filled.
struct Column(&'static str, Side);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Right,
    Left,
}

fn grid(columns: &[Column], rows: &[Vec<String>], paint: Paint) -> String {
    let width_of = |index: usize, heading: &str| {
        rows.iter().filter_map(|row| row.get(index)).map(|cell| width(cell)).chain([width(heading)]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = columns.iter().enumerate().map(|(index, column)| width_of(index, column.0)).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let filled: Vec<String> = cells
            .zip(columns)
            .zip(&widths)
            .map(|((cell, column), width)| if column.1 == Side::Right { pad(cell, *width) } else { pad_left(cell, *width) })
            .collect();
        filled.join("  ").trim_end().to_owned()
    };
    let mut out = paint.bold(&line(&mut columns.iter().map(|column| column.0))) + "\n";
    for row in rows {
        out.push_str(&line(&mut row.iter().map(String::as_str)));
        out.push('\n');
    }
    out
}

/// Returns runs as a table, with their ages at `now_us`.
pub fn runs(runs: &[Run], now_us: i64, paint: Paint) -> String {
    let columns = [
        Column("RUN", Side::Right),
        Column("STATE", Side::Right),
        Column("WORKFLOW", Side::Right),
        Column("AGENT", Side::Right),
        Column("AGE", Side::Left),
        Column("TURNS", Side::Left),
        Column("RUNS", Side::Left),
        Column("TOKENS", Side::Left),
        Column("COST", Side::Left),
        Column("TITLE", Side::Right),
    ];
    let rows: Vec<Vec<String>> = runs
        .iter()
        .map(|run| {
            let (own, all) = (run.own_usage.unwrap_or_default(), run.subtree_usage.unwrap_or_default());
            vec![
                run.run_id.clone(),
                standing(run.state(), run.outcome()),
                one_line(&run.workflow_name),
                one_line(&run.agent),
                elapsed(now_us - micros(run.create_time.as_ref())),
                count(own.turn_count.into()),
                count(all.run_count.into()),
                count(all.input_tokens.saturating_add(all.output_tokens)),
                usd(all.cost_usd_nanos),
                fit(&one_line(&run.title), TITLE_CELLS).into_owned(),
            ]
        })
        .collect();
    grid(&columns, &rows, paint)
}

/// Returns the receipts of a cancel.
pub fn receipts(receipts: &[CancelReceipt], paint: Paint) -> String {
    let columns = [
        Column("RUN", Side::Right),
        Column("AGENT", Side::Right),
        Column("WAS", Side::Right),
        Column("NOW", Side::Right),
        Column("CALLS CANCELLED", Side::Left),
        Column("CALLS FINISHED", Side::Left),
        Column("CALLS IN DOUBT", Side::Left),
        Column("MS", Side::Left),
    ];
    let rows: Vec<Vec<String>> = receipts
        .iter()
        .map(|receipt| {
            vec![
                receipt.run_id.clone(),
                one_line(&receipt.agent),
                enum_name(receipt.state_at_cancel().as_str_name(), "RUN_STATE_"),
                enum_name(receipt.outcome().as_str_name(), "OUTCOME_"),
                count(receipt.calls_cancelled.into()),
                count(receipt.calls_finished.into()),
                count(receipt.calls_in_doubt.into()),
                count(receipt.quiescent_ms),
            ]
        })
        .collect();
    grid(&columns, &rows, paint)
}

/// Returns names and values, the values in line.
pub fn facts(facts: &[(&str, String)], paint: Paint) -> String {
    let names = facts.iter().map(|(name, _)| width(name)).max().unwrap_or(0);
    let shown = facts.iter().filter(|(_, value)| !value.is_empty());
    shown.map(|(name, value)| format!("{}  {value}\n", paint.dim(&pad(name, names)))).collect()
}

/// Returns one run in full.
pub fn run(run: &Run, paint: Paint) -> String {
    let time = |time: Option<&pbjson_types::Timestamp>| time.map_or_else(String::new, |time| date_time(micros(Some(time))));
    let why = run.failure.as_ref().map(|failure| {
        let (code, words) = (one_line(&failure.reason), without_name(&failure.reason.to_ascii_lowercase(), &failure.message));
        if code.is_empty() || words.is_empty() { format!("{code}{words}") } else { format!("{code}: {words}") }
    });
    let mut labels: Vec<String> = run.labels.iter().map(|(key, value)| format!("{}={}", one_line(key), one_line(value))).collect();
    labels.sort();
    let context = match (run.context_tokens, run.window_tokens) {
        (0, 0) => String::new(),
        (0, window) => format!("window of {} tokens", count(window)),
        (tokens, 0) => format!("{} tokens", count(tokens)),
        (tokens, window) => format!("{} of {} tokens", count(tokens), count(window)),
    };
    let reserved = if run.reserved_usd_nanos > 0 { usd(run.reserved_usd_nanos) } else { String::new() };
    let of_root = if run.root_run_id == run.run_id { String::new() } else { run.root_run_id.clone() };
    facts(
        &[
            ("run", run.run_id.clone()),
            ("parent", run.parent_run_id.clone()),
            ("root", of_root),
            ("state", standing(run.state(), run.outcome())),
            ("reason", why.unwrap_or_default()),
            ("cancel reason", one_line(&run.cancel_reason)),
            ("workflow", one_line(&run.workflow_name)),
            ("agent", one_line(&run.agent)),
            ("model", one_line(&run.model)),
            ("context", context),
            ("title", one_line(&run.title)),
            ("inputs", one_line(&run.inputs_json)),
            ("labels", labels.join(", ")),
            ("submitter", one_line(&run.submitter)),
            ("limits", run.limits.as_ref().map(line::limits).unwrap_or_default()),
            ("own usage", run.own_usage.as_ref().map(usage).unwrap_or_default()),
            ("subtree usage", run.subtree_usage.as_ref().map(usage).unwrap_or_default()),
            ("set aside", reserved),
            ("trace", run.trace_id.clone()),
            ("created", time(run.create_time.as_ref())),
            ("started", time(run.start_time.as_ref())),
            ("ended", time(run.end_time.as_ref())),
            ("truncated", if run.truncated { "yes, the last reply was cut off by its output limit".to_owned() } else { String::new() }),
        ],
        paint,
    )
}

fn usage(usage: &Usage) -> String {
    let mut parts = vec![
        usd(usage.cost_usd_nanos) + if usage.cost_unknown { " and what has no known price" } else { "" },
        format!("{} + {} tokens", count(usage.input_tokens), count(usage.output_tokens)),
        format!("turns {}", count(usage.turn_count.into())),
        format!("calls {}", count(usage.tool_call_count.into())),
        format!("runs {}", count(usage.run_count.into())),
    ];
    if usage.written_off_usd_nanos > 0 {
        parts.push(format!("{} of it written off", usd(usage.written_off_usd_nanos)));
    }
    if usage.overrun_usd_nanos > 0 {
        parts.push(format!("{} of it beyond what was set aside", usd(usage.overrun_usd_nanos)));
    }
    if usage.estimated {
        parts.push("partly estimated".to_owned());
    }
    parts.join(", ")
}

/// Returns limits as a table, with the defaults beside them if they are known.
pub fn limits(limits: &Limits, defaults: Option<&Limits>, paint: Paint) -> String {
    let columns = [Column("LIMIT", Side::Right), Column("THIS WORKFLOW", Side::Left), Column("DEFAULT", Side::Left)];
    let names = ["max_turns", "budget_usd", "max_tokens", "timeout", "max_depth", "max_runs"];
    let own = limit_cells(limits);
    let default = defaults.map(limit_cells).unwrap_or_default();
    let rows: Vec<Vec<String>> =
        names.iter().zip(own).zip(default).map(|((name, own), default)| vec![(*name).to_owned(), own, default]).collect();
    grid(&columns, &rows, paint)
}

fn limit_cells(limits: &Limits) -> [String; 6] {
    let number = |value: Option<i64>| value.map_or_else(|| "-".to_owned(), count);
    let timeout = limits.timeout.as_ref().map(|time| elapsed(time.seconds.saturating_mul(1_000_000) + i64::from(time.nanos) / 1000));
    [
        number(limits.max_turns.map(Into::into)),
        limits.budget_usd_nanos.map_or_else(|| "-".to_owned(), usd),
        number(limits.max_tokens),
        timeout.unwrap_or_else(|| "-".to_owned()),
        number(limits.max_depth.map(Into::into)),
        number(limits.max_runs.map(Into::into)),
    ]
}

/// Returns the models that are known. Prices of calls with much input stand in a row of their own.
pub fn models(models: &[KnownModel], paint: Paint) -> String {
    let columns = [
        Column("MODEL", Side::Right),
        Column("INPUT", Side::Left),
        Column("CACHE READ", Side::Left),
        Column("CACHE WRITE", Side::Left),
        Column("OUTPUT", Side::Left),
        Column("WINDOW", Side::Left),
        Column("PRICE FROM", Side::Right),
        Column("READY", Side::Right),
    ];
    let prices = |rates: &Rates| {
        [rates.input_pico, rates.cache_read_pico, rates.cache_write_pico, rates.output_pico]
            .map(|pico| decimal_usd(pico.saturating_mul(1000)))
    };
    let mut rows: Vec<Vec<String>> = Vec::new();
    for model in models {
        let cells = model.rates.as_ref().map_or_else(Default::default, prices);
        let window = if model.window_tokens > 0 { count(model.window_tokens) } else { String::new() };
        let ready = if model.ready { "yes" } else { "no key" };
        let name = format!("{}/{}", model.provider, model.model);
        let rest = [window, model.price_version.clone(), ready.to_owned()];
        rows.push([name].into_iter().chain(cells).chain(rest).collect());
        if let Some(long) = &model.long_rates {
            let name = format!("  above {} tokens", count(model.long_above_tokens));
            rows.push([name].into_iter().chain(prices(long)).chain([String::new(), String::new(), String::new()]).collect());
        }
    }
    grid(&columns, &rows, paint)
}

/// Returns what a daemon is.
pub fn info(info: &GetServerInfoResponse, address: &str, paint: Paint) -> String {
    facts(
        &[
            ("address", address.to_owned()),
            ("version", info.server_version.clone()),
            ("api", info.api_version.clone()),
            ("workflow versions", info.workflow_versions.join(", ")),
            ("store", info.store.clone()),
            ("providers", info.providers.join(", ")),
            ("capabilities", info.capabilities.join(", ")),
            ("price book", info.price_book_version.clone()),
            ("default limits", info.default_limits.as_ref().map(line::limits).unwrap_or_default()),
            ("ceilings", info.ceilings.as_ref().map(line::limits).unwrap_or_default()),
            ("running runs", count(info.running_run_count)),
            ("dropped spans", count(info.dropped_span_count)),
            ("started", info.start_time.as_ref().map_or_else(String::new, |time| date_time(micros(Some(time))))),
        ],
        paint,
    )
}

/// Returns the commands that help with a root run that has stopped; none if it completed or was cancelled.
pub fn next_steps(run: &Run) -> Vec<String> {
    let id = &run.run_id;
    let limits = run.limits.unwrap_or_default();
    let is_suspended = run.state() == RunState::Suspended;
    if !is_suspended && run.state() != RunState::Ended {
        return Vec::new();
    }
    match run.outcome() {
        Outcome::Completed | Outcome::Cancelled => Vec::new(),
        _ if !is_suspended => vec![format!("wrenctl transcript {id}")],
        Outcome::Budget => {
            let doubled = limits.budget_usd_nanos.unwrap_or(0).max(run.subtree_usage.unwrap_or_default().cost_usd_nanos).saturating_mul(2);
            vec![format!("wrenctl resume {id} --budget {}", super::text::decimal_usd(doubled))]
        }
        Outcome::MaxTurns => vec![format!("wrenctl resume {id} --max-turns {}", limits.max_turns.unwrap_or(1).saturating_mul(2))],
        Outcome::MaxTokens => vec![format!("wrenctl resume {id} --max-tokens {}", limits.max_tokens.unwrap_or(1).saturating_mul(2))],
        Outcome::Timeout => {
            let seconds = limits.timeout.map_or(60, |time| time.seconds.max(1)).saturating_mul(2);
            vec![format!("wrenctl resume {id} --timeout {seconds}s")]
        }
        Outcome::ProviderError => vec![format!("wrenctl resume {id}    (once what the message names is mended)")],
        Outcome::Drained => vec![format!("wrenctl watch {id}    (it goes on by itself when wrend is started)")],
        Outcome::Failed | Outcome::Blocked | Outcome::Approval | Outcome::InDoubt | Outcome::Unspecified => {
            vec![format!("wrenctl transcript {id}"), format!("wrenctl resume {id}")]
        }
    }
}
