//! What only the version of the running kernel tells.

use std::sync::OnceLock;

/// The kernel's release, as `uname -r` has it.
pub(super) fn release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// Whether a release is of this version or newer.
pub(super) fn is_at_least(release: &str, version: (u32, u32)) -> bool {
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= version
}

/// Whether a ring closes a file as soon as no request of it is under way. Before 6.13 (commit 7029acd8a950 of
/// Linux) it closes registered files one after the other: a request that hangs keeps all open that were let
/// go of later, with their locks. So the members of an array that is stopped beside a disk that hangs would
/// be locked until that one answers, and no server could be started for the others.
pub(super) fn closes_files_at_once() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| is_at_least(&release(), (6, 13)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_by_their_numbers() {
        for release in ["6.13.0", "6.18.44-fc-v657", "7.0.1"] {
            assert!(is_at_least(release, (6, 13)), "{release}");
        }
        for release in ["6.12.117+deb12-amd64", "6.1.0-41-amd64", "5.19", "", "next"] {
            assert!(!is_at_least(release, (6, 13)), "{release}");
        }
    }
}
