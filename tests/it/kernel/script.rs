//! Golden scripts: commands, a line `---`, then what was decided and which facts were written. `WREN_UPDATE_SCRIPTS=1`
//! writes what happened into the files, for a person to read through.

use std::fmt::Write as _;
use std::sync::Arc;

use wren::kernel::agent::{ContextSpec, OnFull};
use wren::kernel::event::{Abort, CallFailure};
use wren::kernel::{CallId, Effect, LimitsPatch, Message, ModelSpec, OnFailure, RunId, SpawnSpec, Stop, ToolSpec, Usage};

use super::world::{World, id, reply, spawn_spec, tool};

/// One command line, split: its words, and its `key=value` pairs.
struct Line<'a> {
    words: Vec<String>,
    text: &'a str,
}

impl<'a> Line<'a> {
    fn read(text: &'a str) -> Self {
        let mut words = vec![String::new()];
        let mut quoted = false;
        for character in text.chars() {
            match character {
                '"' => quoted = !quoted,
                ' ' if !quoted => words.push(String::new()),
                other => words.last_mut().unwrap().push(other),
            }
        }
        words.retain(|word| !word.is_empty());
        Self { words, text }
    }

    fn word(&self, at: usize) -> &str {
        self.words.get(at).unwrap_or_else(|| panic!("a word is missing: {}", self.text))
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.words.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
    }

    fn number<T: std::str::FromStr>(&self, key: &str) -> Option<T> {
        let text = self.get(key)?;
        Some(text.parse().unwrap_or_else(|_| panic!("no number: {}", self.text)))
    }

    fn limits(&self) -> LimitsPatch {
        LimitsPatch {
            max_turns: self.number("turns"),
            budget_usd_nanos: self.number("budget"),
            max_tokens: self.number("tokens"),
            timeout_ms: self.number("timeout"),
            max_depth: self.number("depth"),
            max_runs: self.number("runs"),
        }
    }

    fn usage(&self) -> Option<Usage> {
        let (input, output) = self.get("usage")?.split_once('/').unwrap();
        Some(Usage { input_tokens: input.parse().unwrap(), output_tokens: output.parse().unwrap(), ..Usage::default() })
    }

    /// The run that the line is about: `@ID` at its beginning, else the root.
    fn run(&mut self) -> RunId {
        match self.words.first().and_then(|word| word.strip_prefix('@')).map(id) {
            Some(run) => {
                self.words.remove(0);
                run
            }
            None => id("root"),
        }
    }

    fn tool(&self) -> ToolSpec {
        let effect = match self.word(2) {
            "read_only" => Effect::ReadOnly,
            "idempotent" => Effect::Idempotent,
            "external" => Effect::External,
            "spawn" => Effect::Spawn,
            other => panic!("no effect {other}"),
        };
        let usual = spawn_spec();
        let spawn = SpawnSpec {
            max_calls: self.number("max_calls").unwrap_or(usual.max_calls),
            max_parallel: self.number("max_parallel").unwrap_or(usual.max_parallel),
            on_failure: if self.get("on_failure") == Some("fail") { OnFailure::Fail } else { OnFailure::Return },
            limits: self.limits(),
            ..usual
        };
        tool(self.word(1), effect, (effect == Effect::Spawn).then_some(spawn))
    }
}

fn stop_of(name: &str) -> Stop {
    let all = [Stop::EndTurn, Stop::ToolCalls, Stop::Length, Stop::Refusal, Stop::Error];
    all.into_iter().find(|stop| stop.name() == name).unwrap_or_else(|| panic!("no stop {name}"))
}

fn abort_of(name: &str) -> Abort {
    let all = [
        Abort::Auth,
        Abort::RateLimited,
        Abort::CutStream,
        Abort::ContextLength,
        Abort::Timeout,
        Abort::InvalidRequest,
        Abort::Overloaded,
        Abort::Network,
    ];
    all.into_iter().find(|abort| abort.name() == name).unwrap_or_else(|| panic!("no failure {name}"))
}

fn reply_line(world: &mut World, run: &RunId, line: &Line<'_>) {
    let calls: Vec<(&str, &str)> = line.get("calls").map_or_else(Vec::new, |calls| {
        let calls = calls.split(',');
        calls.map(|name| name.strip_suffix('!').map_or((name, "{}"), |name| (name, r#"{"path":"a.t"#))).collect()
    });
    let natural = if calls.is_empty() { Stop::EndTurn } else { Stop::ToolCalls };
    let stop = line.get("stop").map_or(natural, stop_of);
    world.answer(run, reply(line.get("text").unwrap_or_default(), &calls, stop, line.usage()));
}

/// Does what one line says. Returns what it shows besides the log.
fn obey(world: &mut World, text: &str) -> String {
    let mut line = Line::read(text);
    let run = line.run();
    let mut shown = String::new();
    match line.word(0) {
        "no-tools" => world.agent.tools = Vec::new().into(),
        "tool" => {
            let mut tools = world.agent.tools.to_vec();
            tools.retain(|known| known.name != line.word(1));
            tools.push(line.tool());
            world.agent.tools = tools.into();
        }
        "fallback" => {
            let mut model = (*world.agent.model).clone();
            let other = ModelSpec { model: line.word(1).to_owned(), fallback: Vec::new(), ..model.clone() };
            model.fallback.push(Arc::new(other));
            world.agent.model = Arc::new(model);
        }
        "window" | "context" => {
            let mut model = (*world.agent.model).clone();
            model.window_tokens = (line.word(0) == "window").then(|| line.word(1).parse().unwrap());
            world.agent.model = Arc::new(model);
            let on_full = if line.get("on_full") == Some("fail") { OnFull::Fail } else { OnFull::Compact };
            world.agent.context = ContextSpec { on_full, keep_turns: line.number("keep").unwrap_or(1) };
        }
        "limits" => world.limits = line.limits().over(world.limits),
        "schema" => world.agent.output_schema = Some(serde_json::json!({"type": "object"})),
        "submit" => world.submit(),
        "reply" => reply_line(world, &run, &line),
        "fail" => {
            let retryable = line.words.iter().any(|word| word == "retryable");
            world.abort(&run, abort_of(line.word(1)), retryable, line.usage());
        }
        "done" => world.finish(&run, &CallId::from_text(line.word(1)), None, line.get("text").unwrap_or("done")),
        "broke" => world.finish(&run, &CallId::from_text(line.word(1)), Some(CallFailure::Failed), line.get("text").unwrap_or("broken")),
        "cancel" => world.cancel(&run, line.get("reason").unwrap_or_default()),
        "cut" => world.cut(),
        "crash" => world.crash(),
        "drain" => world.draining = true,
        "restart" => world.restart(),
        "resume" => world.resume(line.limits()),
        "wait" => world.now_us += line.word(1).parse::<i64>().unwrap() * 1000,
        "transcript" => shown = transcript(world, &run),
        "spans" => shown = crate::telemetry::laws::outline(&world.journal(), world.now_us),
        "account" => shown = account(world, &run),
        other => panic!("no command {other}"),
    }
    world.drive();
    shown
}

fn transcript(world: &World, run: &RunId) -> String {
    let mut shown = String::new();
    for message in &world.node(run).run.transcript {
        match &**message {
            Message::User { text } => writeln!(shown, "user {text:?}").unwrap(),
            Message::Assistant(reply) => writeln!(shown, "assistant {:?} {} calls", reply.text, reply.calls.len()).unwrap(),
            Message::Tool(result) => writeln!(shown, "tool {} ok={} {:?}", result.call_id, result.ok, result.output).unwrap(),
        }
    }
    shown
}

fn account(world: &World, run: &RunId) -> String {
    let account = &world.node(run).account;
    let totals = &account.totals;
    format!(
        "cost {} written off {} overrun {} reserved {} tokens {} turns {} calls {} runs {}\n",
        totals.cost_usd_nanos,
        totals.written_off_usd_nanos,
        totals.overrun_usd_nanos,
        account.reserved.usd_nanos,
        totals.tokens(),
        totals.turns,
        totals.calls,
        account.runs
    )
}

/// Plays a script and returns it with what really happened.
pub fn play(script: &str) -> String {
    let mut world = World::new();
    let mut played = String::new();
    for step in script.trim_end().split("\n\n") {
        let commands = step.split("\n---").next().unwrap();
        writeln!(played, "{commands}").unwrap();
        if commands.lines().all(|line| line.starts_with('#')) {
            played.push('\n');
            continue;
        }
        writeln!(played, "---").unwrap();
        for line in commands.lines().filter(|line| !line.starts_with('#')) {
            // Shown where the script fails.
            println!("{line}");
            let shown = obey(&mut world, line);
            for line in world.log.drain(..) {
                println!("{line}");
                writeln!(played, "{line}").unwrap();
            }
            played.push_str(&shown);
        }
        played.push('\n');
    }
    super::check(&world);
    played.trim_end().to_owned() + "\n"
}
