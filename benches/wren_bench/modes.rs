//! The measurements that the peers are held against: modes a to f and s.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::future::try_join_all;
use serde_json::{Value, json};
use wren::wire::v1;

use crate::daemon::{Daemon, Plan, ms};
use crate::stub::Stub;
use crate::{Result, median};

fn plan(model: &str) -> Plan<'_> {
    Plan { model, child_model: "", tool_takes: "" }
}

fn fan_of<'a>(model: &'a str, child_model: &'a str) -> Plan<'a> {
    Plan { model, child_model, tool_takes: "" }
}

/// a: a 10-turn run, 30 times one after another.
pub async fn sequence(stub: &Stub) -> Result<Value> {
    let daemon = Daemon::start(stub).await?;
    daemon.complete(&plan("plan-2")).await?;
    let cpu_s = daemon.cpu_s()?;
    let mut walls = Vec::new();
    for _ in 0..30 {
        let began = Instant::now();
        daemon.complete(&plan("plan-10")).await?;
        walls.push(ms(began) / 10.0);
    }
    let cpu_ms = (daemon.cpu_s()? - cpu_s) * 1e3 / 300.0;
    Ok(json!({"wall_ms_per_turn": median(walls), "cpu_ms_per_turn": cpu_ms, "rss_mb": daemon.memory_mb("VmHWM")?}))
}

/// b: many 5-turn runs beside each other, 20 ms of provider latency.
pub async fn beside(stub: &Stub, runs: usize) -> Result<Value> {
    let mut daemon = Daemon::start(stub).await?;
    daemon.open_lines(runs).await?;
    daemon.complete(&plan("plan-2")).await?;
    let (cpu_s, began) = (daemon.cpu_s()?, Instant::now());
    let each = plan("plan-5+lat-20");
    try_join_all((0..runs).map(|which| daemon.complete_on(which, &each))).await?;
    let wall_ms = ms(began);
    Ok(json!({"runs": runs, "wall_ms": wall_ms, "cpu_s": daemon.cpu_s()? - cpu_s, "failed": 0, "rss_mb": daemon.memory_mb("VmHWM")?}))
}

/// c: a parent with 16 children of 3 turns each, without latency and with 20 ms.
pub async fn fan(stub: &Stub) -> Result<Value> {
    let daemon = Daemon::start(stub).await?;
    daemon.complete(&plan("plan-2")).await?;
    let mut line = json!({});
    for (key, latency) in [("wall_ms", ""), ("wall20_ms", "+lat-20")] {
        let (model, child) = (format!("fan-16-3{latency}"), format!("plan-3{latency}"));
        let mut walls = Vec::new();
        for _ in 0..11 {
            let began = Instant::now();
            daemon.complete(&fan_of(&model, &child)).await?;
            walls.push(ms(began));
        }
        line[key] = json!(median(walls));
    }
    stub.reset()?;
    daemon.complete(&fan_of("fan-16-3", "plan-3")).await?;
    line["requests"] = stub.stats()?["requests"].clone();
    line["rss_mb"] = json!(daemon.memory_mb("VmHWM")?);
    Ok(line)
}

/// d: cancel a parent with 16 children, each in the middle of a model call.
pub async fn cancel(stub: &Stub) -> Result<Value> {
    let daemon = Daemon::start(stub).await?;
    daemon.complete(&plan("plan-2")).await?;
    let (mut stops, mut closes, mut aborted, mut ended) = (Vec::new(), Vec::new(), Value::Null, 0);
    for _ in 0..5 {
        stub.reset()?;
        let run = daemon.submit(daemon.request(&fan_of("fan-16-1", "slow-10000"))).await?;
        stub.until_in_flight(16)?;
        std::thread::sleep(Duration::from_millis(100));
        let (at_us, began) = (SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64() * 1e6, Instant::now());
        let request = v1::CancelRunRequest { run_id: run, reason: "bench".to_owned(), wait: true };
        let receipt = daemon.runs.clone().cancel_run(request).await?.into_inner();
        stops.push(ms(began));
        let stats = stub.until_in_flight(0)?;
        closes.push((stats["last_abort_us"].as_f64().ok_or("no abort")? - at_us) / 1e3);
        aborted = stats["aborted"].clone();
        ended = receipt.receipts.iter().filter(|run| run.outcome() == v1::Outcome::Cancelled).count();
    }
    Ok(
        json!({"stop_ms": median(stops), "closed_ms": median(closes), "aborted": aborted, "cancelled": ended, "rss_mb": daemon.memory_mb("VmHWM")?}),
    )
}

/// e: one 200-turn run, and what it leaves on the disk after 50, 100 and 200 turns.
pub async fn long(stub: &Stub) -> Result<Value> {
    let mut row = json!({});
    let mut sizes = json!({});
    for turns in [50, 100, 200] {
        let mut daemon = Daemon::start(stub).await?;
        let (written, began) = (daemon.written()?, Instant::now());
        let finished = daemon.complete(&plan(&format!("plan-{turns}"))).await?;
        if turns == 200 {
            let steps: Vec<f64> = finished.turns_at.windows(2).map(|pair| (pair[1] - pair[0]) * 1e3).collect();
            let around = |at: usize| median(steps[at - 4..=at + 4].to_vec());
            row = json!({
                "total_ms": ms(began), "t10": around(8), "t100": around(98), "t200": around(193),
                "bytes_written": daemon.written()? - written, "rss_mb": daemon.memory_mb("VmHWM")?
            });
        }
        daemon.stop()?;
        sizes[turns.to_string()] = json!(daemon.disk_bytes()?);
    }
    row["disk_bytes"] = sizes;
    Ok(json!({"sqlite": row}))
}

/// f: from nothing to the first request at the provider; and the same once the daemon is warm.
pub async fn start(stub: &Stub) -> Result<Value> {
    let daemon = Daemon::start(stub).await?;
    let idle_mb = daemon.memory_mb("VmRSS")?;
    daemon.complete(&plan("plan-1")).await?;
    // The caller of this program reads the stub's count of the first request: a second one would not change it.
    let first_us = stub.stats()?["first_request_us"].clone();
    let at_us = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64() * 1e6;
    daemon.complete(&plan("plan-1")).await?;
    let warm_us = stub.stats()?["last_request_us"].as_f64().ok_or("no request")? - at_us;
    Ok(json!({"idle_rss_mb": idle_mb, "first_request_us": first_us, "warm_ms": warm_us / 1e3, "rss_mb": daemon.memory_mb("VmHWM")?}))
}

/// s: a 3-turn run, and a stop while a tool sleeps.
pub async fn small(stub: &Stub) -> Result<Value> {
    let daemon = Daemon::start(stub).await?;
    daemon.complete(&plan("plan-2")).await?;
    let mut walls = Vec::new();
    for _ in 0..31 {
        let began = Instant::now();
        daemon.complete(&plan("plan-3")).await?;
        walls.push(ms(began));
    }
    let mut stops = Vec::new();
    for _ in 0..5 {
        let run = daemon.submit(daemon.request(&Plan { tool_takes: "5s", ..plan("plan-3") })).await?;
        daemon.until_in_tool(&run).await?;
        let began = Instant::now();
        daemon.runs.clone().cancel_run(v1::CancelRunRequest { run_id: run, reason: "bench".to_owned(), wait: true }).await?;
        stops.push(ms(began));
    }
    Ok(json!({"three_turns_ms": median(walls), "stop_in_tool_ms": median(stops), "rss_mb": daemon.memory_mb("VmHWM")?}))
}

/// submit: what a submission costs before anything runs (a check alone), and until it is durable.
pub async fn submit(stub: &Stub) -> Result<Value> {
    let daemon = Daemon::start(stub).await?;
    daemon.complete(&plan("plan-2")).await?;
    let (mut checks, mut submits) = (Vec::new(), Vec::new());
    let cpu_s = daemon.cpu_s()?;
    for _ in 0..200 {
        let request = v1::SubmitRunRequest { validate_only: true, ..daemon.request(&plan("plan-1")) };
        let began = Instant::now();
        daemon.runs.clone().submit_run(request).await?;
        checks.push(ms(began));
    }
    let check_cpu_ms = (daemon.cpu_s()? - cpu_s) * 1e3 / 200.0;
    for _ in 0..100 {
        let began = Instant::now();
        let run = daemon.submit(daemon.request(&plan("plan-1"))).await?;
        submits.push(ms(began));
        daemon.finish(&run).await?;
    }
    Ok(json!({"check_ms": median(checks), "check_cpu_ms": check_cpu_ms, "submit_ms": median(submits)}))
}
