//! The final answer of an agent with an output schema: found in its text, read, and held against the schema.

use serde_json::Value;

use super::inputs::faults_of;

/// Places in an answer's words from which a value is tried.
const STARTS_MAX: usize = 64;

/// Reads the answer.
///
/// # Errors
/// What is wrong, in words for the model.
pub fn read_output(schema: &Value, text: &str) -> Result<Value, String> {
    let whole = text.trim();
    if whole.is_empty() {
        return Err("the answer is empty".to_owned());
    }
    let validator = jsonschema::validator_for(schema).map_err(|error| error.to_string())?;
    let failed = match serde_json::from_str::<Value>(whole) {
        Ok(value) if validator.is_valid(&value) => return Ok(value),
        Ok(value) => return Err(faults_of(schema, &value)?.join("; ")),
        Err(error) => error,
    };
    // Fences, or words before and after: models do that whatever they are told. The first value that fits is the answer.
    let found = candidates(whole);
    if let Some(fits) = found.iter().find(|value| validator.is_valid(value)) {
        return Ok(fits.clone());
    }
    match found.first() {
        Some(first) => Err(faults_of(schema, first)?.join("; ")),
        None => Err(format!("it is not valid JSON: {failed}")),
    }
}

/// Returns what an agent is told about the form of its answer.
pub fn instruction(schema: &Value) -> String {
    format!("Your final answer must be one JSON value and nothing else, without code fences, that fits this JSON Schema:\n{schema}")
}

/// Returns the values in an answer: those of its fences, then the objects and lists among its words, outermost first.
fn candidates(text: &str) -> Vec<Value> {
    let fences = text.split("```").skip(1).step_by(2).take(STARTS_MAX);
    let mut found: Vec<Value> = fences
        .filter_map(|fence| {
            let inner = fence.split_once('\n').map_or(fence, |(_, inner)| inner);
            serde_json::from_str(inner.trim()).ok()
        })
        .collect();
    let mut from = 0;
    for _ in 0..STARTS_MAX {
        let Some(rest) = text.get(from..) else { break };
        let Some(start) = rest.find(['{', '[']) else { break };
        let Some(rest) = rest.get(start..) else { break };
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        match values.next() {
            Some(Ok(value)) => {
                found.push(value);
                from += start + values.byte_offset();
            }
            _ => from += start + 1,
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn json_is_found_in_and_around_words() {
        let schema = json!({"type": "object", "required": ["verdict"], "properties": {"verdict": {"enum": ["yes", "no"]}}});
        for text in ["{\"verdict\": \"yes\"}", "```json\n{\"verdict\": \"yes\"}\n```", "Here: {\"verdict\": \"yes\"} as asked."] {
            assert_eq!(read_output(&schema, text), Ok(json!({"verdict": "yes"})), "{text}");
        }
        assert!(read_output(&schema, "{\"verdict\": \"maybe\"}").is_err());
        let second = "```\nnote\n```\nthen\n```json\n{\"verdict\":\"no\"}\n```\nuse {curly} words [1]";
        assert_eq!(read_output(&schema, second), Ok(json!({"verdict": "no"})));
        assert_eq!(read_output(&json!({"type": "array"}), "Here: [1,2] ok"), Ok(json!([1, 2])));
        assert!(read_output(&schema, "It is {\"verdict\": \"maybe\"}.").unwrap_err().contains("maybe"));
        assert!(read_output(&schema, &"[{".repeat(100_000)).is_err());
        assert!(read_output(&schema, "yes").unwrap_err().contains("not valid JSON"));
        assert!(read_output(&schema, " ").unwrap_err().contains("empty"));
    }
}
