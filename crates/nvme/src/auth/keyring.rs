//! The peers that this side knows, their secrets, and what it agrees to with them.
//!
//! A file of lines, one for each peer; `#` begins a comment:
//!
//! ```text
//! PEER-NQN HOST-SECRET [CONTROLLER-SECRET] [hash=NAME,...] [group=NAME,...]
//! ```
//!
//! A target's peers are hosts, an initiator's are subsystems; `*` stands for all that have no line of their
//! own. The host proves that it has the first secret, the controller that it has the second one, if there is
//! one. So the same two secrets stand on both ends.

use super::group::Group;
use super::hash::Hash;
use super::secret::{BadSecret, Secret};
use crate::wire::nqn_is_valid;

/// Stands for every peer.
pub(super) const ANY: &str = "*";
/// Lines that a file may have.
const ENTRIES_MAX: usize = 10_000;

/// What is known of a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its NQN, or `*`.
    pub peer: String,
    /// What the host proves to have.
    pub host: Secret,
    /// What the controller proves to have. On an initiator: it must.
    pub controller: Option<Secret>,
    /// The hash functions that may be used, the preferred one first.
    pub hashes: Vec<Hash>,
    /// The groups that may be used, the preferred one first.
    pub groups: Vec<Group>,
}

impl Entry {
    /// With all hash functions and the moderate groups.
    pub fn new(peer: &str, host: Secret, controller: Option<Secret>) -> Self {
        Self {
            peer: peer.to_owned(),
            host,
            controller,
            hashes: Hash::ALL.to_vec(),
            groups: Group::MODERATE.to_vec(),
        }
    }
}

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keyring(Vec<Entry>);

/// Why a file of secrets can't be used. Secrets aren't repeated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}; the form is {form}")]
pub struct KeyFileError {
    /// From 1.
    pub line: usize,
    /// What is wrong there.
    pub reason: String,
    /// How a line looks.
    pub form: &'static str,
}

/// How a line of secrets looks.
pub(super) const FORM: &str = "NQN HOST-SECRET [CONTROLLER-SECRET] [hash=NAME,...] [group=NAME,...]";

/// What has the name of a peer.
pub(super) trait OfPeer {
    fn peer(&self) -> &str;
}

impl OfPeer for Entry {
    fn peer(&self) -> &str {
        &self.peer
    }
}

impl<T> OfPeer for (String, T) {
    fn peer(&self) -> &str {
        &self.0
    }
}

/// Reads the lines of a file, one for each peer; `#` begins a comment.
pub(super) fn in_lines<T: OfPeer>(
    text: &str,
    form: &'static str,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, KeyFileError> {
    let mut entries: Vec<T> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let wrong = |reason: String| KeyFileError { line: index + 1, reason, form };
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let entry = read(line).map_err(wrong)?;
        if entries.iter().any(|other| other.peer() == entry.peer()) {
            return Err(wrong(format!("{} has a line already", entry.peer())));
        }
        if entries.len() >= ENTRIES_MAX {
            return Err(wrong(format!("there are more than {ENTRIES_MAX} peers")));
        }
        entries.push(entry);
    }
    Ok(entries)
}

impl Keyring {
    /// Of these peers.
    pub fn new(entries: Vec<Entry>) -> Self {
        Self(entries)
    }

    /// Reads a file's text.
    pub fn parse(text: &str) -> Result<Self, KeyFileError> {
        Ok(Self(in_lines(text, FORM, entry)?))
    }

    /// What is known of `nqn`.
    pub fn find(&self, nqn: &str) -> Option<&Entry> {
        let of = |name: &str| self.0.iter().find(|entry| entry.peer == name);
        of(nqn).or_else(|| of(ANY))
    }

    /// Whether no peer is known.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn entry(line: &str) -> Result<Entry, String> {
    let mut words = line.split_whitespace();
    let peer = words.next().unwrap_or_default();
    if peer != ANY && !nqn_is_valid(peer) {
        return Err("it doesn't begin with an NQN or *".to_owned());
    }
    let secret = |word: &str, whose: &str| {
        Secret::parse(word).map_err(|error: BadSecret| format!("the {whose}'s secret can't be used: {error}"))
    };
    let host = secret(words.next().ok_or("it has no secret")?, "host")?;
    let mut entry = Entry::new(peer, host, None);
    for word in words {
        if let Some(names) = word.strip_prefix("hash=") {
            entry.hashes = list(names, Hash::ALL, Hash::name)?;
        } else if let Some(names) = word.strip_prefix("group=") {
            entry.groups = list(names, Group::ALL, Group::name)?;
        } else if entry.controller.is_none() {
            let controller = secret(word, "controller")?;
            if controller.is_same_key(&entry.host) {
                // Each could be asked for what it would have to answer the other ("DH-HMAC-CHAP Security
                // Requirements").
                return Err("host and controller must not have the same key".to_owned());
            }
            entry.controller = Some(controller);
        } else {
            return Err("it has too many words".to_owned());
        }
    }
    Ok(entry)
}

fn list<T: Copy + PartialEq>(
    names: &str,
    all: &[T],
    name: impl Fn(T) -> &'static str,
) -> Result<Vec<T>, String> {
    let mut chosen = Vec::new();
    for word in names.split(',') {
        let one = all.iter().copied().find(|one| name(*one) == word);
        let one = one.ok_or_else(|| {
            let known: Vec<_> = all.iter().map(|one| name(*one)).collect();
            format!("'{}' is none of {}", word.escape_default(), known.join(", "))
        })?;
        if !chosen.contains(&one) {
            chosen.push(one);
        }
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
    const OTHER: &str = "DHHC-1:00:ZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXp7fH1+f4CBgoOeXryU:";

    #[test]
    fn a_file_is_read_line_by_line() {
        let text = format!(
            "# hosts\n\nnqn.a {ONE} {OTHER} hash=sha512,sha256 group=ffdhe4096 # here\n  *\t{OTHER}  group=null\n"
        );
        let keys = Keyring::parse(&text).unwrap();
        let found = keys.find("nqn.a").unwrap();
        assert_eq!(found.host.reveal(), ONE);
        assert_eq!(found.controller.as_ref().unwrap().reveal(), OTHER);
        assert_eq!(
            (&found.hashes[..], &found.groups[..]),
            (&[Hash::Sha512, Hash::Sha256][..], &[Group::Ffdhe4096][..])
        );
        let any = keys.find("nqn.b").unwrap();
        assert_eq!(
            (any.host.reveal().as_str(), any.controller.is_none(), any.groups.len()),
            (OTHER, true, 1)
        );
        assert!(Keyring::parse("\n#\n").unwrap().is_empty());
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line_and_without_the_secret() {
        for (text, words) in [
            (format!("nqn.a {ONE}\niqn.a {ONE}"), "line 2: it doesn't begin with an NQN"),
            ("nqn.a".to_owned(), "line 1: it has no secret"),
            (format!("nqn.a {}", &ONE[..30]), "the host's secret can't be used"),
            (format!("nqn.a {ONE} {ONE}"), "must not have the same key"),
            (format!("nqn.a {ONE} {OTHER} {ONE}"), "too many words"),
            (format!("nqn.a {ONE} hash=md5"), "'md5' is none of sha256"),
            (format!("nqn.a {ONE} group="), "'' is none of ffdhe2048"),
            (format!("nqn.a {ONE}\nnqn.a {ONE}"), "line 2: nqn.a has a line already"),
        ] {
            let error = Keyring::parse(&text).unwrap_err().to_string();
            assert!(error.contains(words) && !error.contains("AAEC"), "{error}");
        }
    }
}
