//! The keys of the configuration: the one list that the reader and docs/configuration.md go by.

/// What a key's value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`.
    Flag,
    /// A whole number, not negative.
    Number,
    /// A text.
    Text,
    /// A text: an absolute path.
    Path,
    /// A list of texts.
    List,
    /// A number of bytes, or a text such as `"64M"`.
    Size,
    /// `true`, `false`, or a number.
    FlagOrNumber,
}

impl Kind {
    /// For a sentence: what is needed.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Flag => "true or false",
            Self::Number => "a whole number",
            Self::Text => "a text in quotes",
            Self::Path => "an absolute path in quotes",
            Self::List => "a list of texts in quotes",
            Self::Size => "a size: a number of bytes, or a text such as \"64M\"",
            Self::FlagOrNumber => "true, false or a whole number",
        }
    }
}

/// Where a key may stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Where {
    /// In `[[array]]`, and in `[defaults]` for all arrays.
    Anywhere,
    /// In `[[array]]` only: two arrays can't have the same.
    Array,
}

/// A key of `[defaults]` and `[[array]]` that is an option of `pinstripe serve`, of the same name.
#[derive(Clone, Copy, Debug)]
pub struct OptionKey {
    /// The key, and the option behind its `--`.
    pub name: &'static str,
    /// Its value.
    pub kind: Kind,
    /// Where it may stand.
    pub place: Where,
}

/// A key that is none.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// The key.
    pub name: &'static str,
    /// Its value.
    pub kind: Kind,
    /// What it says, as a sentence of docs/configuration.md.
    pub doc: &'static str,
}

const fn anywhere(name: &'static str, kind: Kind) -> OptionKey {
    OptionKey { name, kind, place: Where::Anywhere }
}

const fn of_one(name: &'static str, kind: Kind) -> OptionKey {
    OptionKey { name, kind, place: Where::Array }
}

/// The options of `serve` that make sense for good. Those that are consents for once (`--force`, `--run`,
/// `--takeover`) are none of them.
pub const OPTIONS: [OptionKey; 42] = [
    of_one("nbd", Kind::List),
    anywhere("ublk", Kind::FlagOrNumber),
    of_one("vhost-user", Kind::Path),
    of_one("fuse", Kind::Path),
    of_one("nvme-tcp", Kind::Text),
    of_one("nqn", Kind::Text),
    anywhere("socket-mode", Kind::Text),
    anywhere("socket-owner", Kind::Text),
    anywhere("socket-group", Kind::Text),
    anywhere("dhchap-hosts", Kind::Path),
    anywhere("nvme-tls-hosts", Kind::Path),
    anywhere("tls-certificates", Kind::Path),
    anywhere("tls", Kind::Text),
    anywhere("tls-clients", Kind::Text),
    anywhere("tls-allow", Kind::List),
    anywhere("allow-remote", Kind::Flag),
    anywhere("read-only", Kind::Flag),
    anywhere("run-after", Kind::Number),
    anywhere("shards", Kind::Number),
    anywhere("cpus", Kind::Text),
    anywhere("cache", Kind::Size),
    anywhere("memory-max", Kind::Size),
    anywhere("policy", Kind::Text),
    anywhere("offload", Kind::Text),
    anywhere("reducer", Kind::Text),
    anywhere("poll", Kind::Flag),
    anywhere("member-timeout", Kind::Number),
    of_one("logical-block", Kind::Number),
    anywhere("max-read-errors", Kind::Number),
    anywhere("journal-mode", Kind::Text),
    anywhere("sync-speed-min", Kind::Number),
    anywhere("sync-speed-max", Kind::Number),
    anywhere("limit-iops", Kind::Number),
    anywhere("limit-bandwidth", Kind::Size),
    anywhere("limit-burst", Kind::Number),
    anywhere("spare-pool", Kind::List),
    anywhere("spare-pool-delay", Kind::Number),
    anywhere("dhchap-secrets", Kind::Path),
    anywhere("nvme-tls-secrets", Kind::Path),
    anywhere("client-address", Kind::List),
    anywhere("log-format", Kind::Text),
    anywhere("log-level", Kind::Text),
];

/// The keys of `[[array]]` that say which array it is, and what becomes of it.
pub const ARRAY: [Key; 6] = [
    Key {
        name: "uuid",
        kind: Kind::Text,
        doc: "The array's UUID, as `pinstripe examine` prints it. An array has this key, or `name`, or both.",
    },
    Key {
        name: "name",
        kind: Kind::Text,
        doc: "The array's name, with or without its host (`host:name`). If two arrays at hand have the \
            name, neither is started: give the UUID.",
    },
    Key {
        name: "members",
        kind: Kind::List,
        doc: "Where its members are: absolute paths, globs of paths, `nvme-tcp://` names, or `pmem:PATH`. \
            Devices that are not named here are left alone, whatever they hold. Without this key, members \
            are searched for where `[scan]` says.",
    },
    AUTO,
    Key {
        name: "log",
        kind: Kind::Path,
        doc: "The file that gets the server's log [default: NAME.log beside the control socket].",
    },
    Key {
        name: "weight",
        kind: Kind::Number,
        doc: "How much its server gets of the CPUs and of the disks beside others, where there is not enough for \
            all: 1 to 10000. It is `CPUWeight=` and `IOWeight=` of its unit, and without systemd it doesn't \
            count [default: 100].",
    },
];

/// The keys of `[[target]]` that say what it serves. All but `auto` are needed.
pub const TARGET: [Key; 3] = [
    Key { name: "name", kind: Kind::Text, doc: "How its unit is called: pinstripe-target@NAME.service." },
    Key {
        name: "devices",
        kind: Kind::List,
        doc: "Absolute paths of block devices or files; the first one becomes namespace 1. Names in \
            /dev/disk/by-id are best: they don't change. The unit waits for the devices of /dev, as long as systemd \
            waits for a device.",
    },
    Key { name: "auto", kind: Kind::Flag, doc: "Whether it is started at boot [default: true]." },
];

/// The options of `target` that make sense for good.
pub const TARGET_OPTIONS: [OptionKey; 18] = [
    of_one("listen", Kind::Text),
    of_one("nqn", Kind::Text),
    of_one("announce", Kind::Text),
    of_one("dhchap-hosts", Kind::Path),
    of_one("nvme-tls-hosts", Kind::Path),
    of_one("dhchap-secrets", Kind::Path),
    of_one("nvme-tls-secrets", Kind::Path),
    of_one("client-address", Kind::List),
    of_one("allow-unauthenticated", Kind::Flag),
    of_one("read-only", Kind::Flag),
    of_one("allow-missing", Kind::Flag),
    of_one("state", Kind::Path),
    of_one("state-create", Kind::Flag),
    of_one("offload", Kind::Text),
    of_one("shards", Kind::Number),
    of_one("cpus", Kind::Text),
    of_one("log-format", Kind::Text),
    of_one("log-level", Kind::Text),
];

/// Also a key of `[defaults]`.
pub const AUTO: Key = Key {
    name: "auto",
    kind: Kind::Flag,
    doc: "Whether `assemble --scan`, `incremental`, the daemon and a boot start the array [default: true]. `assemble --uuid` and \
        `--name` do so in any case, and the daemon sees to it while it is served.",
};

/// What the daemon does for arrays: keys of `[[array]]` and `[defaults]`.
pub const DUTIES: [Key; 4] = [
    Key {
        name: "check-every",
        kind: Kind::Text,
        doc: "How often `pinstripe daemon` compares all parity with the data, as `pinstripe check` does: a \
            time such as `30days`, from begin to begin, or `never` [default: never].",
    },
    Key {
        name: "check-window",
        kind: Kind::Text,
        doc: "When such a check may be under way, in local time: `01:00-06:00`, or with the days on which \
            that begins, `Sat,Sun 22:00-06:00`. A check that isn't done by then goes on in the next window \
            [default: at any time].",
    },
    Key {
        name: "spare-group",
        kind: Kind::Text,
        doc: "The name of a group of arrays. If an array of it has an empty slot and no spare, `pinstripe \
            daemon` moves a spare of another array of the group to it [default: none].",
    },
    Key {
        name: "health",
        kind: Kind::Text,
        doc: "What `pinstripe daemon` does about members whose disks say that they are failing (`smartctl` of \
            smartmontools asks them every hour): `warn`, `replace` (a spare takes the member's place, if the \
            array has one), or `off` [default: warn].",
    },
];

/// With which files the daemon's HTTP is secured: a key of `[metrics]` and `[web]`.
const TLS_CERTIFICATES: Key = Key {
    name: "tls-certificates",
    kind: Kind::Path,
    doc: "Serve it over TLS (https), with the files server-cert.pem and server-key.pem of this folder, see \
        [https](admin.md#https). New files are used without a restart [default: plain HTTP].",
};

/// Also a key of both.
const TLS_CLIENTS: Key = Key {
    name: "tls-clients",
    kind: Kind::Text,
    doc: "Which clients TLS lets in: `any`, or `certified`, those with a certificate that ca-cert.pem of the \
        folder has signed and ca-crl.pem, if it is there, doesn't revoke [default: any].",
};

/// The keys of `[metrics]`.
pub const METRICS: [Key; 3] = [
    Key {
        name: "listen",
        kind: Kind::Text,
        doc: "ADDRESS:PORT on which the daemon serves `/metrics` (for Prometheus), `/healthz` and `/readyz` over \
            HTTP, to everything that can connect [default: not at all].",
    },
    TLS_CERTIFICATES,
    TLS_CLIENTS,
];

/// The keys of `[daemon]`: options of `pinstripe daemon` of the same names.
pub const DAEMON: [OptionKey; 2] = [anywhere("log-format", Kind::Text), anywhere("log-level", Kind::Text)];

/// The keys of `[web]`.
pub const WEB: [Key; 4] = [
    Key {
        name: "listen",
        kind: Kind::Text,
        doc: "ADDRESS:PORT on which the daemon serves its page to a browser, see [the page](operate.md#the-page). \
            Without `tls-certificates` only a loopback address is taken. `daemon --web` comes before it \
            [default: not at all].",
    },
    Key {
        name: "token-file",
        kind: Kind::Path,
        doc: "The file with the page's token: one line of at least 32 characters, readable by the daemon's user \
            only [default: web.token beside the control sockets, which the daemon makes].",
    },
    TLS_CERTIFICATES,
    TLS_CLIENTS,
];

/// The keys of `[alerts]`.
pub const ALERTS: [Key; 3] = [
    Key {
        name: "program",
        kind: Kind::Path,
        doc: "A program that is run for each alert, with the arguments `raised` or `cleared`, the alert's \
            kind, the array and the device (empty if it is about the array), and JSON on its standard input.",
    },
    Key {
        name: "mail",
        kind: Kind::Text,
        doc: "The mail address that gets each alert, by `/usr/sbin/sendmail`.",
    },
    Key {
        name: "webhook",
        kind: Kind::Text,
        doc: "The URL (`https://` or `http://`) to which each alert is sent as JSON, by `curl`.",
    },
];

/// The keys of `[scan]`.
pub const SCAN: [Key; 2] = [
    Key {
        name: "devices",
        kind: Kind::List,
        doc: "Where members are searched for: absolute paths and globs of them [default: all block \
            devices but ublkb*, nbd*, zram*, fd* and sr*].",
    },
    Key {
        name: "assemble",
        kind: Kind::Text,
        doc: "Which arrays `assemble --scan` starts: `configured`, those that have an `[[array]]`; `all`, \
            also every other array that is found [default: configured].",
    },
];
