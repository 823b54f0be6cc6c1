//! By which names targets know this machine.

use std::sync::OnceLock;

use super::Options;
use crate::auth::{Random, SystemRandom};
use crate::uuid::{uuid_of, uuid_text};
use crate::wire::nqn_is_valid;

/// Where Linux's own initiator keeps them.
const HOST_NQN: &str = "/etc/nvme/hostnqn";
const HOST_ID: &str = "/etc/nvme/hostid";
/// What they are made from if it has none.
const MACHINE_ID: &str = "/etc/machine-id";

impl Options {
    /// With the names that Linux's own initiator uses, else with some made from the machine's identity.
    pub fn of_this_host(queues: u16) -> Self {
        let read = |path: &str| std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
        let host_id = read(HOST_ID).and_then(|text| parse(&text)).unwrap_or_else(|| {
            uuid_of(&[b"pinstripe host", read(MACHINE_ID).unwrap_or_default().as_bytes()])
        });
        let own = || format!("nqn.2014-08.org.nvmexpress:uuid:{}", uuid_text(&host_id));
        let nqn = read(HOST_NQN).filter(|nqn| nqn_is_valid(nqn)).unwrap_or_else(own);
        Self { instance: instance(), ..Self::new(nqn, host_id, queues) }
    }
}

/// Which process this is: the same for all of its associations.
fn instance() -> [u8; 16] {
    static INSTANCE: OnceLock<[u8; 16]> = OnceLock::new();
    *INSTANCE.get_or_init(|| {
        let mut bytes = [0; 16];
        // Without random bytes there is no instance: then servers take all such processes of a host for one.
        SystemRandom.fill(&mut bytes).map_or([0; 16], |()| bytes)
    })
}

/// A UUID that is not zero.
fn parse(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let number = u128::from_str_radix(&digits, 16).ok().filter(|number| *number != 0)?;
    (digits.len() == 32).then(|| number.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_the_same_for_all_of_its_associations() {
        let (one, other) = (Options::of_this_host(1), Options::of_this_host(2));
        assert_eq!(one.instance, other.instance);
        assert_ne!(one.instance, [0; 16]);
    }

    #[test]
    fn an_identifier_is_read_as_it_is_written() {
        let id = uuid_of(&[b"a"]);
        assert_eq!(parse(&uuid_text(&id)), Some(id));
        assert_eq!(parse("00000000-0000-0000-0000-000000000000"), None);
        assert_eq!(parse("1234"), None);
    }
}
