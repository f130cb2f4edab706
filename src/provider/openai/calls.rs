//! Tool calls put together from their pieces. It runs nothing and judges no arguments.
//!
//! Servers number pieces from 0 or from 1, or not at all; they repeat the id and name, leave them empty, or use one id
//! twice. The first id and name of a call stay, and only arguments are appended.

use std::collections::HashMap;
use std::mem::take;

use serde_json::Value;

use crate::kernel::ReplyCall;
use crate::provider::answer::CALLS_MAX;

/// The calls of one reply, so far.
#[derive(Debug, Default)]
pub struct Calls {
    calls: Vec<ReplyCall>,
    bytes: usize,
    // The latest call under each index and id.
    by_index: HashMap<i64, usize>,
    by_id: HashMap<String, usize>,
}

impl Calls {
    /// Adds one entry of a streamed `tool_calls`: a piece of a call, or a whole one.
    pub fn add(&mut self, entry: &Value) {
        let index = entry.get("index").and_then(Value::as_i64);
        self.piece(index, id_of(entry), entry.get("function").unwrap_or(&Value::Null));
    }

    /// Adds one entry of the `tool_calls` of a whole message: always a call of its own, whatever its id.
    pub fn add_whole(&mut self, entry: &Value) {
        self.by_index.clear();
        self.by_id.clear();
        self.piece(Some(0), id_of(entry), entry.get("function").unwrap_or(&Value::Null));
    }

    /// Adds a piece of the one `function_call` of old servers.
    pub fn add_function(&mut self, function: &Value) {
        self.piece(Some(-1), None, function);
    }

    /// Returns whether there are more than anybody means.
    pub fn is_overfull(&self) -> bool {
        self.calls.len() > CALLS_MAX
    }

    /// Returns how many bytes of names and arguments have come so far.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes all calls out, in the order begun.
    pub fn take(&mut self) -> Vec<ReplyCall> {
        let mut calls = take(self).calls;
        calls.truncate(CALLS_MAX);
        calls
    }

    fn piece(&mut self, index: Option<i64>, id: Option<&str>, function: &Value) {
        if self.is_overfull() {
            return;
        }
        let name = function.get("name").and_then(Value::as_str).filter(|name| !name.is_empty());
        let arguments = match function.get("arguments") {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
        };
        let found = self.find(index, id, name, &arguments);
        let at = found.unwrap_or_else(|| {
            self.calls.push(ReplyCall { provider_id: None, tool: String::new(), args_raw: String::new() });
            self.calls.len() - 1
        });
        let Some(call) = self.calls.get_mut(at) else { return };
        if call.provider_id.is_none() {
            call.provider_id = id.map(str::to_owned);
        }
        if call.tool.is_empty() {
            call.tool = name.unwrap_or_default().to_owned();
        }
        call.args_raw.push_str(&arguments);
        self.bytes += arguments.len() + name.map_or(0, str::len) + id.map_or(0, str::len);
        if let Some(index) = index {
            self.by_index.insert(index, at);
        }
        if let Some(id) = id {
            self.by_id.insert(id.to_owned(), at);
        }
    }

    /// Returns the call that a piece goes on with; `None` if it begins a new one.
    fn find(&self, index: Option<i64>, id: Option<&str>, name: Option<&str>, arguments: &str) -> Option<usize> {
        let at = match (index, id) {
            (Some(index), _) => *self.by_index.get(&index)?,
            (None, Some(id)) => *self.by_id.get(id)?,
            (None, None) => self.calls.len().checked_sub(1)?,
        };
        let call = self.calls.get(at)?;
        // Some servers give every call the same index; their ids tell the calls apart, or else their names.
        let other_id = id.is_some_and(|id| call.provider_id.as_deref().is_some_and(|known| known != id));
        let other_name = id.is_none() && name.is_some_and(|name| !call.tool.is_empty() && call.tool != name);
        let whole_again = (id.is_none() || index.is_none())
            && name.is_some()
            && call.args_raw.trim_end().ends_with('}')
            && arguments.trim_start().starts_with('{');
        (!other_id && !other_name && !whole_again).then_some(at)
    }
}

fn id_of(entry: &Value) -> Option<&str> {
    entry.get("id").and_then(Value::as_str).filter(|id| !id.is_empty())
}
