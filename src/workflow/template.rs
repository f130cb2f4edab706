//! Templates: minijinja with a short leash. A template sees what it is handed and nothing else, an undefined name is an
//! error, values are never read as templates, and work is bounded.

use std::collections::BTreeSet;

use minijinja::machinery::{Instruction, get_compiled_template};
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, UndefinedBehavior, Value as Item, escape_formatter};
use serde_json::Value;

/// Steps of work that one rendering may take.
const FUEL: u64 = 50_000;
/// Bytes that one rendering may give.
const RENDERED_BYTES_MAX: usize = 256 * 1024;

/// What is wrong with a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// In words.
    pub message: String,
    /// A name that is used and not known, if that is the fault.
    pub unknown: Option<String>,
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(FUEL));
    environment.set_formatter(|out, state, value| {
        let is_text = value.as_str().is_some();
        if is_text || value.is_undefined() {
            return escape_formatter(out, state, value);
        }
        // Lists, numbers, none and booleans are written as JSON, not as another language's literals.
        let json = serde_json::to_string(value)
            .map_err(|error| minijinja::Error::new(minijinja::ErrorKind::BadSerialization, error.to_string()))?;
        out.write_str(&json).map_err(minijinja::Error::from)
    });
    environment
}

/// Checks a template whose names must begin with one of `known` (`inputs.topic`).
///
/// # Errors
/// The first fault of its grammar, or every name that is not known.
pub fn check(text: &str, known: &BTreeSet<String>) -> Result<(), Vec<Fault>> {
    let environment = environment();
    let template = environment.template_from_str(text).map_err(|error| vec![fault(&error)])?;
    let roots: BTreeSet<&str> = known.iter().filter_map(|name| name.split('.').next()).collect();
    let mut used: BTreeSet<String> = template.undeclared_variables(true).into_iter().collect();
    let mut faults = walk(&template, &environment, &mut used);
    for name in used {
        // `inputs` alone is all of them; below a known name anything goes.
        let is_known = known.iter().any(|known| name == *known || name.starts_with(&format!("{known}.")));
        if is_known || roots.contains(name.as_str()) || FUNCTIONS.contains(&name.as_str()) {
            continue;
        }
        let message = if known.is_empty() {
            format!("`{name}` is not known here; nothing is")
        } else {
            format!("`{name}` is not known here; known: {}", known.iter().cloned().collect::<Vec<_>>().join(", "))
        };
        faults.push(Fault { message, unknown: Some(name) });
    }
    if faults.is_empty() { Ok(()) } else { Err(faults) }
}

/// Functions that a template may call.
const FUNCTIONS: [&str; 3] = ["range", "dict", "namespace"];

/// Finds filters and tests that do not exist, which the engine would tell only when it comes to them, in the middle of
/// a run. Adds names in brackets (`inputs['topic']`) to those that are used.
fn walk(template: &minijinja::Template<'_, '_>, environment: &Environment<'_>, used: &mut BTreeSet<String>) -> Vec<Fault> {
    let compiled = get_compiled_template(template);
    let mut unknown = BTreeSet::new();
    for code in std::iter::once(&compiled.instructions).chain(compiled.blocks.values()) {
        for index in 0.. {
            let Some(instruction) = code.get(index) else { break };
            let after = |skip: u32| code.get(index.saturating_add(skip));
            match (instruction, after(1), after(2)) {
                (Instruction::ApplyFilter(name, ..), _, _) if !exists(environment, &format!("0|{name}")) => {
                    unknown.insert(("filter", *name));
                }
                (Instruction::PerformTest(name, ..), _, _) if !exists(environment, &format!("0 is {name}")) => {
                    unknown.insert(("test", *name));
                }
                (Instruction::Lookup(root), Some(Instruction::LoadConst(part)), Some(Instruction::GetItem)) if used.contains(*root) => {
                    used.extend(part.as_str().map(|part| format!("{root}.{part}")));
                }
                _ => {}
            }
        }
    }
    unknown.into_iter().map(|(kind, name)| Fault { message: format!("there is no {kind} `{name}`"), unknown: None }).collect()
}

/// Returns whether the operation of an expression exists. Only its evaluation tells an unknown name from a wrong value.
fn exists(environment: &Environment<'_>, expression: &str) -> bool {
    let evaluated = environment.compile_expression(expression).and_then(|compiled| compiled.eval(()));
    !evaluated.is_err_and(|error| matches!(error.kind(), minijinja::ErrorKind::UnknownFilter | minijinja::ErrorKind::UnknownTest))
}

/// Renders a template.
///
/// # Errors
/// What went wrong, in words.
pub fn render(text: &str, inputs: &Value, args: Option<&Value>) -> Result<String, String> {
    if !text.contains("{{") && !text.contains("{%") && !text.contains("{#") {
        return Ok(text.to_owned());
    }
    let environment = environment();
    let template = environment.template_from_str(text).map_err(|error| fault(&error).message)?;
    let mut context = serde_json::Map::new();
    context.insert("inputs".to_owned(), inputs.clone());
    if let Some(args) = args {
        context.insert("args".to_owned(), args.clone());
    }
    let mut out = Bounded { text: String::new() };
    let rendered = template.render_captured_to(Item::from(Serde(Value::Object(context))), &mut out);
    rendered.map_err(|error| fault(&error).message)?;
    Ok(out.text)
}

/// Takes a rendering up to a bound.
struct Bounded {
    text: String,
}

impl std::io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.text.len() + bytes.len() > RENDERED_BYTES_MAX {
            return Err(std::io::Error::other("the rendered text is too long"));
        }
        self.text.push_str(&String::from_utf8_lossy(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn fault(error: &minijinja::Error) -> Fault {
    let detail = error.detail().map(|detail| format!(": {detail}")).unwrap_or_default();
    let line = error.line().map(|line| format!(" (line {line} of the template)")).unwrap_or_default();
    Fault { message: format!("{}{detail}{line}", error.kind()), unknown: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_stay_text_and_work_is_bounded() {
        let inputs = json!({"a": "{{ inputs.b }}", "list": [1, true, null], "n": 3});
        assert_eq!(render("{{ inputs.a }} {{ inputs.list }} {{ inputs.n }}", &inputs, None).unwrap(), "{{ inputs.b }} [1,true,null] 3");
        assert!(render("{{ inputs.missing }}", &inputs, None).is_err());
        assert!(render("{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}", &inputs, None).is_err());
        assert!(render("{{ 'a' * 1000000000 }}", &inputs, None).is_err());
        assert!(render("{% include 'x' %}", &inputs, None).is_err());
    }

    #[test]
    fn names_are_checked_before_anything_runs() {
        let known = BTreeSet::from(["inputs.topic".to_owned()]);
        assert!(check("About {{ inputs.topic | upper }}", &known).is_ok());
        assert_eq!(check("{{ inputs.tpoic }}", &known).unwrap_err()[0].unknown.as_deref(), Some("inputs.tpoic"));
        assert!(check("{{ steps.x }}", &known).is_err());
        assert!(check("{{ inputs.topic | nosuch }}", &known).unwrap_err()[0].message.contains("filter `nosuch`"));
        assert!(check("{% if inputs.topic is not nosuch %}x{% endif %}", &known).unwrap_err()[0].message.contains("test `nosuch`"));
        assert!(check("{% for i in range(3) %}{{ inputs.topic | trim }}{% endfor %}", &known).is_ok());
        assert!(check("{% filter nosuch %}x{% endfilter %}", &known).unwrap_err()[0].message.contains("filter `nosuch`"));
        assert_eq!(check("{{ inputs['tpoic'] }}", &known).unwrap_err()[0].unknown.as_deref(), Some("inputs.tpoic"));
        assert!(check("{{ inputs['topic'] }}{{ inputs }}", &known).is_ok());
        assert!(check("{% set is = 1 %}{{ is if is is defined }}", &known).is_ok());
        assert!(check("{{ inputs.topic", &known).is_err());
    }
}
