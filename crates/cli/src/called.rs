//! What an array is called here, where another one of its name is here too, such as a copy or another
//! machine's. All of them are served, and one has the name: sockets and `/dev/pinstripe` know one by it.
//! Pure.
//!
//! Which one that is must not depend on which server is started first. It is the array that has the name now,
//! or that had it until its server was killed, for its clients know it so. If there is none, an array that is
//! to be started comes before one that isn't, an entry that gives the name before one that gives the UUID,
//! this host's array before another host's, and the lowest UUID before all others.

use pinstripe_control::place::stem;
use pinstripe_md::identity::Uuid;

/// An array that has the name, and can be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claim {
    /// It has left no sign that it had the name last.
    pub is_new: bool,
    pub entry: Entry,
    /// It is not this host's.
    pub is_foreign: bool,
    pub uuid: Uuid,
}

/// By what the configuration has an array started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Entry {
    Name,
    Uuid,
    None,
}

/// This machine's name.
pub fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Whether an array that is called so is another host's.
pub fn is_foreign(name: &str, host: &str) -> bool {
    name.split_once(':').is_some_and(|(own, _)| own != host)
}

/// What the array `uuid` is called instead of `name`; nothing if it has the name itself. `holder`: the array
/// that is served under the name.
pub fn called(name: &str, uuid: Uuid, holder: Option<Uuid>, claims: &[Claim]) -> Option<String> {
    let keeper = holder.or(claims.iter().min().map(|claim| claim.uuid)).unwrap_or(uuid);
    let text = uuid.to_string();
    // Of a name that is none for a file the UUID stands there in any case.
    let is_shared = keeper != uuid && stem(name, &text) == name;
    is_shared.then(|| beside(name, uuid))
}

/// A name as udev's rule makes it one of a file (`string_escape=replace`), after udev has cut off white space
/// and quotes. Arrays of one such name would share `/dev/pinstripe/NAME`.
pub fn in_dev(name: &str) -> String {
    const QUOTES: [char; 2] = ['"', '\''];
    let name = name.trim();
    let name = name.strip_prefix(QUOTES).and_then(|name| name.strip_suffix(QUOTES)).unwrap_or(name);
    let stays = |c: char| c.is_ascii_alphanumeric() || "#+-.:=@_".contains(c) || !c.is_ascii();
    name.chars().map(|c| if stays(c) { c } else { '_' }).collect()
}

/// What an array is called beside one that has its name.
pub fn beside(name: &str, uuid: Uuid) -> String {
    format!("{name}_{}", uuid.to_string().split(':').next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_udev_makes_one_are_one() {
        for name in ["a b", "a_b", "a/b", "a b ", "\"a b\"", "'a_b'"] {
            assert_eq!(in_dev(name), "a_b", "{name}");
        }
        assert_ne!(in_dev("a-b"), in_dev("a_b"));
    }

    #[test]
    fn one_array_of_a_name_has_it_and_the_others_are_told_apart_by_their_uuid() {
        let uuid = |number| Uuid([number; 16]);
        let claim = |entry, is_foreign, number| Claim { is_new: true, entry, is_foreign, uuid: uuid(number) };
        let has_it = |holder: Option<u8>, claims: &[Claim]| {
            let names = claims.iter().map(|claim| called("data", claim.uuid, holder.map(uuid), claims));
            names.map(|called| called.is_none()).collect::<Vec<_>>()
        };
        let [low, high] = [claim(Entry::Uuid, false, 1), claim(Entry::Uuid, false, 2)];
        assert_eq!(has_it(None, &[high]), [true]);
        assert_eq!(has_it(None, &[high, low]), [false, true]);
        assert_eq!(has_it(None, &[high, claim(Entry::Uuid, true, 1)]), [true, false]);
        assert_eq!(has_it(None, &[claim(Entry::Uuid, true, 2), claim(Entry::None, false, 1)]), [true, false]);
        assert_eq!(has_it(None, &[Claim { entry: Entry::Name, ..high }, low]), [true, false]);
        assert_eq!(has_it(Some(2), &[high, low]), [true, false], "it has clients");
        assert_eq!(has_it(None, &[Claim { is_new: false, ..high }, low]), [true, false], "it had clients");
        assert_eq!(has_it(Some(3), &[high, low]), [false, false]);
        assert_eq!(called("data", uuid(2), None, &[high, low]).as_deref(), Some("data_02020202"));
        assert_eq!(called("a/b", uuid(2), None, &[high, low]), None, "it is called by its UUID");
    }
}
