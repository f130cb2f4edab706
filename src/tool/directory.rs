//! A directory that is held open, and nothing outside it. Every path goes through the handle: no path is resolved first
//! and opened later, so a link that is swapped in between leads nowhere. What is done with the content is not decided
//! here.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::{Component, Path};

use cap_std::fs::{Dir, FileType, MetadataExt, OpenOptions, OpenOptionsExt};
use tokio_util::sync::CancellationToken;

use super::Failure;
use super::watched::cancelled;

/// Bytes of a path at most.
const PATH_BYTES_MAX: usize = 4096;
/// Components of a path at most.
const PATH_COMPONENTS_MAX: usize = 64;
/// Names that are read from one directory at most: a directory can be larger than memory.
const NAMES_MAX: usize = 50_000;

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

/// What was found in a directory and below it.
#[derive(Default)]
pub struct Listing {
    /// Sorted by path.
    pub entries: Vec<Entry>,
    /// Whether there was more than may be listed.
    pub more: bool,
}

impl Directory {
    /// Opens `root` below `workspace` and holds it.
    ///
    /// # Errors
    /// Which of the two cannot be opened, why, and what to do. A root that leads outside is told apart by its spelling
    /// and its links alone, so that the words never say what exists out there.
    pub fn open(workspace: &Path, root: &str) -> Result<Self, String> {
        let inside = relative(root).map_err(|fault| match fault {
            PathFault::Outside => format!("its root {root:?} leads outside the workspace; name a directory inside it"),
            PathFault::Malformed => format!("its root is not a path: {MALFORMED}"),
        })?;
        let outer = Dir::open_ambient_dir(workspace, cap_std::ambient_authority()).map_err(|error| {
            format!("the workspace {} is not a directory that can be opened ({error}); pass another one", workspace.display())
        })?;
        if inside.is_empty() {
            return Ok(Self { dir: outer });
        }
        let dir = outer.open_dir(&inside).map_err(|error| {
            if is_escape(&error) {
                return format!("its root {root:?} leads outside the workspace; name a directory inside it");
            }
            let workspace = workspace.display();
            match error.kind() {
                io::ErrorKind::NotFound => {
                    format!("its root {root:?} does not exist in the workspace {workspace}; create it or correct it")
                }
                io::ErrorKind::NotADirectory => format!("its root {root:?} in the workspace {workspace} is not a directory"),
                _ => format!("its root {root:?} in the workspace {workspace} cannot be opened: {error}"),
            }
        })?;
        Ok(Self { dir })
    }

    /// Opens a regular file for reading, and tells its size in bytes.
    ///
    /// # Errors
    /// Words for the model.
    pub fn file(&self, path: &str) -> Result<(File, u64), Failure> {
        let clean = checked(path)?;
        let directory = || Failure(format!("{path} is a directory. Call list_files with this path to see what is in it."));
        if clean.is_empty() {
            return Err(directory());
        }
        let mut options = OpenOptions::new();
        // Opening a FIFO for reading would otherwise wait for a writer, for ever.
        options.read(true).custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed());
        let file = self.dir.open_with(&clean, &options).map_err(|error| words(path, &error))?;
        let metadata = file.metadata().map_err(|error| words(path, &error))?;
        if metadata.is_dir() {
            return Err(directory());
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

    /// Lists what is in a directory and below it, `depth` levels deep and at most `max` entries; links and special files
    /// are left out. The upper levels come first, so that one large directory does not hide its siblings.
    ///
    /// # Errors
    /// Words for the model; the cancel, once the token has fired.
    pub fn list(&self, path: &str, depth: u32, max: usize, token: &CancellationToken) -> Result<Listing, Failure> {
        let top = checked(path)?;
        let mut listing = Listing::default();
        let mut waiting = VecDeque::from([(top.clone(), 1)]);
        while let Some((prefix, level)) = waiting.pop_front() {
            let names = match self.names(&prefix, &mut listing.more, token) {
                Ok(names) => names,
                Err(_) if token.is_cancelled() => return Err(cancelled()),
                Err(error) if prefix == top => return Err(not_listed(path, &error)),
                // A directory below that may not be entered, or is gone by now, is shown and left closed.
                Err(_) => continue,
            };
            for (name, kind) in names {
                if listing.entries.len() >= max {
                    listing.more = true;
                    waiting.clear();
                    break;
                }
                let path = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
                if kind.is_dir() && level < depth {
                    waiting.push_back((path.clone(), level + 1));
                }
                let bytes = if kind.is_dir() { 0 } else { self.dir.symlink_metadata(&path).map_or(0, |metadata| metadata.len()) };
                listing.entries.push(Entry { path, is_dir: kind.is_dir(), bytes });
            }
        }
        listing.entries.sort_by(|left, right| left.path.cmp(&right.path));
        Ok(listing)
    }

    /// Returns the directories and regular files of one directory, sorted: what a bound cuts off is the same each time.
    fn names(&self, path: &str, more: &mut bool, token: &CancellationToken) -> io::Result<Vec<(String, FileType)>> {
        let entries = if path.is_empty() { self.dir.entries()? } else { self.dir.open_dir(path)?.entries()? };
        let mut names = Vec::new();
        for entry in entries {
            if token.is_cancelled() {
                return Err(io::Error::other("cancelled"));
            }
            if names.len() >= NAMES_MAX {
                *more = true;
                break;
            }
            let entry = entry?;
            let kind = entry.file_type()?;
            // A name that is not UTF-8 cannot be asked for.
            if let Ok(name) = entry.file_name().into_string()
                && (kind.is_dir() || kind.is_file())
            {
                names.push((name, kind));
            }
        }
        names.sort_by(|(left, _), (right, _)| left.cmp(right));
        Ok(names)
    }
}

const MALFORMED: &str = "at most 4096 bytes, at most 64 parts, and no NUL.";

enum PathFault {
    Outside,
    Malformed,
}

/// Returns the path without `.` components; empty for the held directory itself.
fn relative(path: &str) -> Result<String, PathFault> {
    if path.len() > PATH_BYTES_MAX || path.contains('\0') {
        return Err(PathFault::Malformed);
    }
    let mut parts = Vec::new();
    for component in Path::new(path).components() {
        match component {
            Component::CurDir => {}
            Component::Normal(part) => parts.push(part.to_string_lossy().into_owned()),
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return Err(PathFault::Outside),
        }
    }
    if parts.len() > PATH_COMPONENTS_MAX {
        return Err(PathFault::Malformed);
    }
    Ok(parts.join("/"))
}

fn checked(path: &str) -> Result<String, Failure> {
    relative(path).map_err(|fault| match fault {
        PathFault::Outside => outside(path),
        PathFault::Malformed => Failure(format!("bad path: {MALFORMED}")),
    })
}

fn outside(path: &str) -> Failure {
    Failure(format!("{path:?} leads outside the workspace. Paths are relative to it, without `..`; call list_files to see what exists."))
}

/// cap-std reports an escape as a permission error that no system call has made.
fn is_escape(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied && error.raw_os_error().is_none()
}

fn not_listed(path: &str, error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::NotADirectory => Failure(format!("{path} is a file. Call read_file to read it.")),
        io::ErrorKind::NotFound => {
            Failure(format!("no such file or directory: {path}. Call list_files without a path to see what exists."))
        }
        _ => words(path, error),
    }
}

fn words(path: &str, error: &io::Error) -> Failure {
    if is_escape(error) {
        return outside(path);
    }
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            Failure(format!("no such file: {path}. Call list_files to see what exists."))
        }
        io::ErrorKind::PermissionDenied => Failure(format!("{path} may not be read: its permissions forbid it.")),
        _ => Failure(format!("{path} cannot be read: {error}.")),
    }
}
