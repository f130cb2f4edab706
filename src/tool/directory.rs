//! A directory that is held open, and nothing outside it. Every path goes through the handle: no path is resolved first
//! and opened later, so a link that is swapped in between leads nowhere.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Component, Path};

use cap_std::fs::{Dir, MetadataExt, OpenOptions, OpenOptionsExt};

use super::Failure;

/// Bytes of a path at most.
const PATH_BYTES_MAX: usize = 4096;
/// Components of a path at most.
const PATH_COMPONENTS_MAX: usize = 64;

/// A held directory.
pub struct Directory {
    dir: Dir,
}

/// Something in a directory.
pub struct Entry {
    /// Its path, relative to the held directory.
    pub path: String,
    /// Whether it is a directory.
    pub is_dir: bool,
    /// Its size in bytes, for a file.
    pub bytes: u64,
}

impl Directory {
    /// Opens `root` below `workspace` and holds it.
    ///
    /// # Errors
    /// What the system says, or that the root leads outside.
    pub fn open(workspace: &Path, root: &str) -> io::Result<Self> {
        let outer = Dir::open_ambient_dir(workspace, cap_std::ambient_authority())?;
        let root = Path::new(root);
        let inside: std::path::PathBuf = root.components().filter(|part| !matches!(part, Component::CurDir)).collect();
        let dir = if inside.as_os_str().is_empty() { outer } else { outer.open_dir(inside)? };
        Ok(Self { dir })
    }

    /// Opens a regular file for reading.
    ///
    /// # Errors
    /// Words for the model.
    pub fn file(&self, path: &str) -> Result<(File, u64), Failure> {
        let clean = checked(path)?;
        let mut options = OpenOptions::new();
        // Opening a FIFO for reading would otherwise wait for a writer, for ever.
        options.read(true).custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed());
        let file = self.dir.open_with(&clean, &options).map_err(|error| words(path, &error))?;
        let metadata = file.metadata().map_err(|error| words(path, &error))?;
        if metadata.is_dir() {
            return Err(Failure(format!("{path} is a directory. Call list_files with this path to see what is in it.")));
        }
        if !metadata.is_file() {
            return Err(Failure(format!("{path} is not a regular file and cannot be read.")));
        }
        if metadata.nlink() > 1 {
            // A hard link may be a name of a file outside.
            return Err(Failure(format!(
                "{path} has more than one name (a hard link) and is not read, since it may be a file outside the workspace."
            )));
        }
        Ok((file.into_std(), metadata.len()))
    }

    /// Reads at most `bytes_max` bytes of a regular file, as text with replacement characters.
    ///
    /// # Errors
    /// Words for the model.
    pub fn text(&self, path: &str, bytes_max: u64) -> Result<(String, u64), Failure> {
        let (file, size) = self.file(path)?;
        let mut bytes = Vec::new();
        file.take(bytes_max).read_to_end(&mut bytes).map_err(|error| words(path, &error))?;
        Ok((String::from_utf8_lossy(&bytes).into_owned(), size))
    }

    /// Lists what is in a directory and below it, `depth` levels deep, sorted by path; links and special files are left
    /// out. At most `max` entries; the flag says whether there were more. `go_on` is asked now and then.
    ///
    /// # Errors
    /// Words for the model.
    pub fn list(&self, path: &str, depth: u32, max: usize, go_on: &dyn Fn() -> bool) -> Result<(Vec<Entry>, bool), Failure> {
        let clean = checked(path)?;
        let start = if clean.is_empty() { self.dir.try_clone() } else { self.dir.open_dir(&clean) };
        let start = start.map_err(|error| match error.kind() {
            io::ErrorKind::NotADirectory => Failure(format!("{path} is a file. Call read_file to read it.")),
            _ => words(path, &error),
        })?;
        let mut found = Vec::new();
        let complete = walk(&start, &clean, depth, max, go_on, &mut found).map_err(|error| words(path, &error))?;
        found.sort_by(|left, right| left.path.cmp(&right.path));
        Ok((found, !complete))
    }
}

/// Returns whether everything was seen.
fn walk(dir: &Dir, prefix: &str, depth: u32, max: usize, go_on: &dyn Fn() -> bool, found: &mut Vec<Entry>) -> io::Result<bool> {
    for entry in dir.entries()? {
        let entry = entry?;
        if found.len() >= max || !go_on() {
            return Ok(false);
        }
        // A name that is not UTF-8 cannot be asked for again.
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}/{name}") };
        let kind = entry.file_type()?;
        if kind.is_dir() {
            found.push(Entry { path: path.clone(), is_dir: true, bytes: 0 });
            let below = if depth > 1 { dir.open_dir(&name) } else { continue };
            // A directory that may not be entered is shown and left closed.
            if let Ok(below) = below
                && !walk(&below, &path, depth - 1, max, go_on, found)?
            {
                return Ok(false);
            }
        } else if kind.is_file() {
            found.push(Entry { path, is_dir: false, bytes: entry.metadata().map(|metadata| metadata.len()).unwrap_or(0) });
        }
    }
    Ok(true)
}

/// Returns the path without `.` components; empty for the held directory itself.
fn checked(path: &str) -> Result<String, Failure> {
    let outside = || {
        Failure(format!(
            "{path:?} leads outside the workspace. Paths are relative to it, without `..`; call list_files to see what exists."
        ))
    };
    if path.len() > PATH_BYTES_MAX || path.contains('\0') {
        return Err(Failure("bad path: at most 4096 bytes, and no NUL.".to_owned()));
    }
    let mut parts = Vec::new();
    for component in Path::new(path).components() {
        match component {
            Component::CurDir => {}
            Component::Normal(part) => parts.push(part.to_string_lossy().into_owned()),
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return Err(outside()),
        }
    }
    if parts.len() > PATH_COMPONENTS_MAX {
        return Err(Failure("bad path: at most 64 parts.".to_owned()));
    }
    Ok(parts.join("/"))
}

fn words(path: &str, error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::NotFound => Failure(format!("no such file: {path}. Call list_files to see what exists.")),
        // cap-std reports an escape through a link as a permission error.
        io::ErrorKind::PermissionDenied => {
            Failure(format!("{path} may not be read: it leads outside the workspace, or its permissions forbid it."))
        }
        _ => Failure(format!("{path} cannot be read: {error}.")),
    }
}
