//! The final answer of an agent with an output schema: found in its text, read, and held against the schema.

use serde_json::Value;

use super::inputs::faults_of;

/// Reads the answer.
///
/// # Errors
/// What is wrong, in words for the model.
pub fn read_output(schema: &Value, text: &str) -> Result<Value, String> {
    let value = find_json(text)?;
    let faults = faults_of(schema, &value)?;
    if faults.is_empty() { Ok(value) } else { Err(faults.join("; ")) }
}

/// Returns what an agent is told about the form of its answer.
pub fn instruction(schema: &Value) -> String {
    format!("Your final answer must be one JSON value and nothing else, without code fences, that fits this JSON Schema:\n{schema}")
}

fn find_json(text: &str) -> Result<Value, String> {
    let whole = text.trim();
    if whole.is_empty() {
        return Err("the answer is empty".to_owned());
    }
    let failed = match serde_json::from_str(whole) {
        Ok(value) => return Ok(value),
        Err(error) => error,
    };
    if let Some(value) = fenced(whole).and_then(|inner| serde_json::from_str(inner).ok()) {
        return Ok(value);
    }
    // Words before and after one object: models do that whatever they are told.
    let (first, last) = (whole.find('{'), whole.rfind('}'));
    if let (Some(first), Some(last)) = (first, last)
        && first < last
        && let Ok(value) = serde_json::from_str(&whole[first..=last])
    {
        return Ok(value);
    }
    Err(format!("it is not valid JSON: {failed}"))
}

fn fenced(text: &str) -> Option<&str> {
    let from = text.find("```")?;
    let inner = &text[from + 3..];
    let inner = inner.find('\n').map_or(inner, |line| &inner[line + 1..]);
    inner.find("```").map(|end| inner[..end].trim())
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
        assert!(read_output(&schema, "yes").unwrap_err().contains("not valid JSON"));
        assert!(read_output(&schema, " ").unwrap_err().contains("empty"));
    }
}
