//! From what the configuration says of devices to paths.

use std::path::{Path, PathBuf};

use glob::{MatchOptions, glob_with};

/// How the name of a namespace on a server begins.
const SERVER: &str = "nvme-tcp://";
/// How a name of persistent memory begins.
const PERSISTENT: &str = "pmem:";

/// What names and globs came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expanded {
    /// Names of devices, as `serve` takes them, each once. A path that is no glob is among them whether it
    /// is there or not.
    pub paths: Vec<PathBuf>,
    /// The globs that match nothing now.
    pub empty: Vec<String>,
    /// What could not be looked into.
    pub unreadable: Vec<String>,
}

/// Whether a name is that of a namespace on a server.
pub fn is_server(name: &str) -> bool {
    name.starts_with(SERVER)
}

/// The path in a name of this machine's: of a glob too.
pub(crate) fn path_in(name: &str) -> &str {
    name.strip_prefix(PERSISTENT).unwrap_or(name)
}

/// Whether a name stands for what it matches.
fn is_glob(name: &str) -> bool {
    !is_server(name) && name.contains(['*', '?', '['])
}

/// Why a name can't stand in the configuration.
pub(crate) fn check(name: &str) -> Result<(), String> {
    if is_server(name) {
        return Ok(());
    }
    let path = path_in(name);
    if !path.starts_with('/') {
        return Err(format!(
            "{name:?} is no absolute path: servers don't run in a folder of yours, so write it whole"
        ));
    }
    if path.contains("**") {
        return Err(format!(
            "{name:?}: \"**\" is not taken, for it would search whole trees: name the folder"
        ));
    }
    glob::Pattern::new(path).map(drop).map_err(|error| format!("{name:?} is no glob: {error}"))
}

/// The devices of `names`. A glob's come sorted.
pub fn expand(names: &[String]) -> Expanded {
    let mut expanded = Expanded::default();
    for name in names {
        let found = if is_glob(name) { matches(name, &mut expanded) } else { vec![PathBuf::from(name)] };
        if found.is_empty() {
            expanded.empty.push(name.clone());
        }
        for path in found {
            if !expanded.paths.contains(&path) {
                expanded.paths.push(path);
            }
        }
    }
    expanded
}

fn matches(name: &str, expanded: &mut Expanded) -> Vec<PathBuf> {
    let options = MatchOptions {
        case_sensitive: true,
        require_literal_separator: true,
        // With it, the crate panics at a name that is no UTF-8. Such names match nothing.
        require_literal_leading_dot: false,
    };
    // The pattern was checked when the configuration was read.
    let Ok(found) = glob_with(path_in(name), options) else { return Vec::new() };
    // Part by part: no pattern has `**`.
    let is_hidden = |path: &Path| {
        let dot = |part: std::path::Component<'_>| part.as_os_str().as_encoded_bytes().starts_with(b".");
        path.components()
            .zip(Path::new(path_in(name)).components())
            .any(|(part, asked)| dot(part) && !dot(asked))
    };
    let mut paths = Vec::new();
    for path in found {
        match path {
            Ok(path) if is_hidden(&path) => {}
            Ok(path) if name.starts_with(PERSISTENT) => {
                let mut persistent = std::ffi::OsString::from(PERSISTENT);
                persistent.push(path);
                paths.push(PathBuf::from(persistent));
            }
            Ok(path) => paths.push(path),
            Err(error) => expanded.unreadable.push(format!("{}: {}", error.path().display(), error.error())),
        }
    }
    paths
}
