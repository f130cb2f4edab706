//! Spans as text for people, as OTLP JSON, and as the file that Jaeger's UI opens.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

use super::names as n;
use super::span::{Attribute, Kind, Span};
use crate::kernel::next::usd;

/// The name that all spans of a daemon go by, unless its environment says otherwise.
pub const SERVICE_NAME: &str = "wrend";
/// Who made the spans.
pub const SCOPE_NAME: &str = "wren";

/// The flags of a span in OTLP: sampled, and its parent is known to be of the same process.
const FLAGS: u32 = 0x101;
/// The flags of a link: sampled, and known to be to another trace.
const LINK_FLAGS: u32 = 0x301;

/// Returns the spans as an indented tree.
pub fn text(spans: &[Span]) -> String {
    let mut lines = Vec::new();
    let ids: HashSet<&str> = spans.iter().map(|span| &*span.span_id).collect();
    let mut below: HashMap<&str, Vec<&Span>> = HashMap::new();
    for span in spans {
        // A span whose parent is elsewhere stands at the top.
        let parent = span.parent_span_id.as_deref().filter(|parent| ids.contains(parent));
        below.entry(parent.unwrap_or_default()).or_default().push(span);
    }
    let mut trace = "";
    for span in below.get("").into_iter().flatten() {
        if span.trace_id != trace {
            trace = &span.trace_id;
            lines.push(format!("trace {trace}"));
        }
        add_text(span, &below, 0, &mut lines);
    }
    lines.join("\n") + "\n"
}

fn add_text(span: &Span, below: &HashMap<&str, Vec<&Span>>, level: usize, lines: &mut Vec<String>) {
    let ms = (span.end_us - span.start_us).max(0) / 1000;
    let mut line = format!("{}{}  {ms} ms", "  ".repeat(level), span.name);
    if span.attribute(n::USAGE_INPUT_TOKENS).is_some() {
        line.push_str(&format!("  {} in + {} out", span.int(n::USAGE_INPUT_TOKENS), span.int(n::USAGE_OUTPUT_TOKENS)));
    }
    if span.attribute(n::WREN_COST_USD_NANOS).is_some() {
        line.push_str(&format!("  {}", usd(span.int(n::WREN_COST_USD_NANOS))));
    }
    if span.int(n::WREN_COST_WRITTEN_OFF_USD_NANOS) > 0 {
        line.push_str(&format!("  {} written off", usd(span.int(n::WREN_COST_WRITTEN_OFF_USD_NANOS))));
    }
    if let Some(Attribute::Float(tree)) = span.attribute(n::WREN_COST_TREE_USD).filter(|_| span.name.starts_with("invoke_workflow")) {
        line.push_str(&format!("  tree ${tree:.6}"));
    }
    if let Some(error) = &span.error {
        line.push_str(&format!("  ERROR {error}"));
    }
    if span.attribute(n::WREN_UNFINISHED).is_some() {
        line.push_str("  (not finished)");
    }
    lines.push(line);
    for child in below.get(&*span.span_id).into_iter().flatten() {
        add_text(child, below, level + 1, lines);
    }
}

/// Returns the spans as an OTLP `ExportTraceServiceRequest` in JSON.
pub fn otlp_json(spans: &[Span]) -> String {
    let spans: Vec<Value> = spans.iter().map(otlp_span).collect();
    let document = json!({"resourceSpans": [{
        "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": SERVICE_NAME}}]},
        "scopeSpans": [{"scope": {"name": SCOPE_NAME, "version": env!("CARGO_PKG_VERSION")}, "spans": spans}]
    }]});
    format!("{document:#}\n")
}

fn otlp_span(span: &Span) -> Value {
    let attributes = |list: &[(&'static str, Attribute)]| -> Vec<Value> {
        list.iter().map(|(key, value)| json!({"key": key, "value": otlp_value(value)})).collect()
    };
    let kind = match span.kind {
        Kind::Internal => 1,
        Kind::Client => 3,
        Kind::Server => 2,
    };
    let events: Vec<Value> = span
        .events
        .iter()
        .map(|event| json!({"timeUnixNano": nanos(event.time_us), "name": event.name, "attributes": attributes(&event.attributes)}))
        .collect();
    let links: Vec<Value> =
        span.links.iter().map(|link| json!({"traceId": link.trace_id, "spanId": link.span_id, "flags": LINK_FLAGS})).collect();
    let status = span.error.as_ref().map_or_else(|| json!({}), |error| json!({"code": 2, "message": error}));
    json!({
        "traceId": span.trace_id, "spanId": span.span_id, "parentSpanId": span.parent_span_id.clone().unwrap_or_default(), "flags": FLAGS,
        "name": span.name, "kind": kind, "startTimeUnixNano": nanos(span.start_us), "endTimeUnixNano": nanos(span.end_us),
        "attributes": attributes(&span.attributes), "events": events, "links": links, "status": status
    })
}

fn nanos(time_us: i64) -> String {
    format!("{}", i128::from(time_us) * 1000)
}

fn otlp_value(value: &Attribute) -> Value {
    match value {
        Attribute::Text(text) => json!({"stringValue": text}),
        Attribute::Int(number) => json!({"intValue": number.to_string()}),
        Attribute::Float(number) => json!({"doubleValue": number}),
        Attribute::Bool(yes) => json!({"boolValue": yes}),
        Attribute::Texts(list) => {
            let values: Vec<Value> = list.iter().map(|text| json!({"stringValue": text})).collect();
            json!({"arrayValue": {"values": values}})
        }
    }
}

/// Returns the spans as Jaeger's `/api/traces/{id}` answers them, which its UI takes as a file.
pub fn jaeger_json(spans: &[Span]) -> String {
    let mut traces: Vec<&str> = Vec::new();
    for span in spans {
        if !traces.contains(&span.trace_id.as_str()) {
            traces.push(&span.trace_id);
        }
    }
    let data: Vec<Value> = traces
        .iter()
        .map(|trace| {
            let spans: Vec<Value> = spans.iter().filter(|span| span.trace_id == *trace).map(jaeger_span).collect();
            json!({"traceID": trace, "spans": spans, "processes": {"p1": {"serviceName": SERVICE_NAME, "tags": []}}, "warnings": null})
        })
        .collect();
    let document = json!({"data": data, "total": 0, "limit": 0, "offset": 0, "errors": null});
    format!("{document:#}\n")
}

fn jaeger_span(span: &Span) -> Value {
    let mut references = Vec::new();
    if let Some(parent) = &span.parent_span_id {
        references.push(json!({"refType": "CHILD_OF", "traceID": span.trace_id, "spanID": parent}));
    }
    for link in &span.links {
        references.push(json!({"refType": "FOLLOWS_FROM", "traceID": link.trace_id, "spanID": link.span_id}));
    }
    // What Jaeger makes of an OTLP span's own fields.
    let mut tags: Vec<Value> = vec![
        tag("otel.scope.name", &Attribute::Text(SCOPE_NAME.to_owned())),
        tag("otel.scope.version", &Attribute::Text(env!("CARGO_PKG_VERSION").to_owned())),
    ];
    tags.extend(span.attributes.iter().map(|(key, value)| tag(key, value)));
    let kind = match span.kind {
        Kind::Internal => "internal",
        Kind::Client => "client",
        Kind::Server => "server",
    };
    tags.push(tag("span.kind", &Attribute::Text(kind.to_owned())));
    if let Some(error) = &span.error {
        tags.push(tag("otel.status_code", &Attribute::Text("ERROR".to_owned())));
        tags.push(tag("error", &Attribute::Bool(true)));
        tags.push(tag("otel.status_description", &Attribute::Text(error.clone())));
    }
    let logs: Vec<Value> = span
        .events
        .iter()
        .map(|event| {
            let mut fields = vec![tag("event", &Attribute::Text(event.name.to_owned()))];
            fields.extend(event.attributes.iter().map(|(key, value)| tag(key, value)));
            json!({"timestamp": event.time_us, "fields": fields})
        })
        .collect();
    json!({
        "traceID": span.trace_id, "spanID": span.span_id, "operationName": span.name, "references": references,
        "startTime": span.start_us, "duration": (span.end_us - span.start_us).max(0), "tags": tags, "logs": logs,
        "processID": "p1", "warnings": null
    })
}

fn tag(key: &str, value: &Attribute) -> Value {
    match value {
        Attribute::Text(text) => json!({"key": key, "type": "string", "value": text}),
        Attribute::Int(number) => json!({"key": key, "type": "int64", "value": number}),
        Attribute::Float(number) => json!({"key": key, "type": "float64", "value": number}),
        Attribute::Bool(yes) => json!({"key": key, "type": "bool", "value": yes}),
        // Jaeger has no lists: it writes them as JSON.
        Attribute::Texts(list) => json!({"key": key, "type": "string", "value": serde_json::to_string(list).unwrap_or_default()}),
    }
}
