//! What is read from the client's disk for a submission: the workflow's file and its inputs. The daemon opens no client path.

use std::collections::HashSet;
use std::io::Read;
use std::path::Path;

use serde_json::{Map, Value};

use super::arguments::InputArgs;
use super::error::Error;
use super::exit;
use crate::wire::v1::{Bundle, SourceFile};

/// The daemon takes no more; a file beyond it is no workflow, and is not worth the memory.
const FILE_BYTES_MAX: u64 = 1024 * 1024;
const STDIN_NAME: &str = "stdin.yaml";

/// Reads a workflow's file into a bundle.
///
/// # Errors
/// It cannot be read or is too large.
pub fn workflow(path: &Path, stdin: &mut dyn Read) -> Result<Bundle, Error> {
    let content = read(path, stdin)?;
    let entry_path = if is_stdin(path) { STDIN_NAME.to_owned() } else { path.to_string_lossy().into_owned() };
    Ok(Bundle { entry_path: entry_path.clone(), files: vec![SourceFile { path: entry_path, content }] })
}

/// Checks that stdin is not asked for twice: the second reader would find nothing there.
///
/// # Errors
/// It is.
pub fn one_reader(workflow: &Path, given: &InputArgs) -> Result<(), Error> {
    if is_stdin(workflow) && given.input_file.as_deref().is_some_and(is_stdin) {
        return Err(Error::usage("standard input can be read once; name a file for the workflow or for --input-file"));
    }
    Ok(())
}

/// Checks that no key of a repeatable option is given twice: of two values one would be lost without a word.
///
/// # Errors
/// One is.
pub fn once(option: &str, pairs: &[(String, String)]) -> Result<(), Error> {
    let mut seen = HashSet::new();
    match pairs.iter().find(|(key, _)| !seen.insert(key)) {
        Some((key, _)) => Err(Error::usage(format!("{option} {key} is given twice; keep one of its values"))),
        None => Ok(()),
    }
}

/// Returns the inputs as a JSON object: those of the file, then those of the command line. Words of the command line stay
/// words; the daemon reads them as what the workflow asks for. `None` if none are given.
///
/// # Errors
/// The file cannot be read or holds no object.
pub fn inputs(given: &InputArgs, stdin: &mut dyn Read) -> Result<Option<String>, Error> {
    once("--input", &given.input)?;
    let mut values = Map::new();
    if let Some(path) = &given.input_file {
        let content = read(path, stdin)?;
        // JSON is YAML as well, but its errors are better told by its own reader.
        let name = path.display();
        let value: Result<Value, String> = match serde_json::from_slice(&content) {
            Ok(value) => Ok(value),
            Err(error) if content.trim_ascii_start().starts_with(b"{") => Err(error.to_string()),
            Err(_) => serde_yaml::from_slice(&content).map_err(|error| error.to_string()),
        };
        match value {
            Ok(Value::Object(object)) => values = object,
            Ok(_) => return Err(Error::new(exit::INVALID, format!("{name}: the inputs must be an object of names and values"))),
            Err(why) => return Err(Error::new(exit::INVALID, format!("{name}: the inputs cannot be read: {why}"))),
        }
    }
    for (key, value) in &given.input {
        values.insert(key.clone(), Value::String(value.clone()));
    }
    let any = given.input_file.is_some() || !values.is_empty();
    Ok(any.then(|| Value::Object(values).to_string()))
}

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn read(path: &Path, stdin: &mut dyn Read) -> Result<Vec<u8>, Error> {
    let failed = |error: std::io::Error| Error::new(exit::USAGE, format!("cannot read {}: {error}", path.display()));
    let mut content = Vec::new();
    if is_stdin(path) {
        stdin.take(FILE_BYTES_MAX + 1).read_to_end(&mut content).map_err(failed)?;
    } else {
        let file = std::fs::File::open(path).map_err(failed)?;
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut content).map_err(failed)?;
    }
    if content.len() as u64 > FILE_BYTES_MAX {
        return Err(Error::new(
            exit::INVALID,
            format!("{} has more than {FILE_BYTES_MAX} bytes; no workflow is that large", path.display()),
        ));
    }
    Ok(content)
}
