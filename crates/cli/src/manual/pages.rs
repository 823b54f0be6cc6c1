//! What the manual pages say beside the description of the command line: examples, files, and what else to
//! read.

/// See the module.
pub struct Page {
    /// What for, and the command.
    pub examples: &'static [(&'static str, &'static str)],
    /// Where, and what it is.
    pub files: &'static [(&'static str, &'static str)],
    /// Commands of ours (nothing for the command itself), and other pages with their sections.
    pub related: &'static [&'static str],
}

const CONTROL: (&str, &str) = (
    "/run/pinstripe/NAME.sock",
    "The control socket of the array NAME. Users other than root have theirs in $XDG_RUNTIME_DIR/pinstripe, if that is set; PINSTRIPE_RUNTIME_DIR names another folder.",
);
const NBD: (&str, &str) = (
    "/run/pinstripe/NAME.nbd",
    "The socket on which NBD clients reach the array NAME, unless --nbd names another address.",
);
const SECRETS: (&str, &str) = (
    "/etc/pinstripe/secrets",
    "Secrets with which hosts and NVMe/TCP servers authenticate, if --dhchap-secrets or --dhchap-hosts names this file, or keys of TLS, if --nvme-tls-secrets or --nvme-tls-hosts does. It must be readable by its owner only.",
);
const HOST: (&str, &str) = (
    "/etc/nvme/hostnqn",
    "This host's NQN for NVMe/TCP servers. Without this file, the NQN is made from the machine's identity.",
);
const UBLK: (&str, &str) = ("/dev/ublkbID", "The block device of an array that is served with --ublk.");
const FUSE: (&str, &str) =
    ("/dev/fuse", "The kernel's FUSE, by which --fuse mounts the array as a file. Mounting needs root.");
const UBLK_CONTROL: (&str, &str) =
    ("/dev/ublk-control", "The kernel's ublk driver. It is there when the module ublk_drv is loaded.");
const MANUALS: (&str, &str) = ("/usr/local/share/man/man1", "A place for manual pages.");
const STATE: (&str, &str) = (
    "/var/lib/pinstripe",
    "State of the target that must be kept over a restart, if --state names this directory: which host may write.",
);
const JOINED: (&str, &str) = (
    "/var/lib/pinstripe/joined",
    "Where the devices are that have joined arrays while they were served: starts look for members there, too.",
);
const CONFIGURATION: (&str, &str) = (
    "/etc/pinstripe/pinstripe.toml",
    "The configuration, with the files conf.d/*.toml beside it. PINSTRIPE_CONFIG names another main file. \
        docs/configuration.md lists the keys.",
);
const LOG: (&str, &str) = (
    "/run/pinstripe/NAME.log",
    "The log of a server that assemble or incremental has started, unless the configuration names another file.",
);
const DEMO: (&str, &str) =
    ("/tmp", "The folder of the demo's files while it runs, unless --folder names another one.");

const ON_SERVED: &[(&str, &str)] = &[CONTROL];
const ON_DEVICES: &[(&str, &str)] = &[SECRETS, HOST];

/// The page of a command.
pub fn page(command: &str) -> Page {
    let (examples, files, related) = match command {
        "create" | "examine" | "zero-superblock" | "serve" | "target" | "discover" => of_devices(command),
        "list" | "top" | "detail" => of_states(command),
        "monitor" | "stop" | "sync" | "check" | "repair" | "record" => of_service(command),
        "add" | "fail" | "remove" | "replace" | "grow" => of_members(command),
        "assemble" | "incremental" | "config" => of_configuration(command),
        _ => of_the_rest(command),
    };
    Page { examples, files, related }
}

type Parts = (
    &'static [(&'static str, &'static str)],
    &'static [(&'static str, &'static str)],
    &'static [&'static str],
);

const EXAMPLES_OF_SERVE: &[(&str, &str)] = &[
    (
        "Serve an array, and use it:",
        "pinstripe serve /dev/sda /dev/sdb /dev/sdc & nbd-client -unix /run/pinstripe/data.nbd /dev/nbd0 -name data",
    ),
    (
        "At boot: wait a minute for members that are late, then go on without them:",
        "pinstripe serve --run-after 60 /dev/sda /dev/sdb /dev/sdc",
    ),
    ("A member is lost for good:", "pinstripe serve --run /dev/sda /dev/sdc"),
    ("As a block device:", "pinstripe serve --ublk=0 /dev/sda /dev/sdb /dev/sdc"),
    (
        "As a disk of a virtual machine:",
        "pinstripe serve --vhost-user /run/pinstripe/data.vhost /dev/sda /dev/sdb /dev/sdc & qemu-system-x86_64 -m 4G -object memory-backend-memfd,id=memory,size=4G,share=on -machine q35,accel=kvm,memory-backend=memory -chardev socket,id=data,path=/run/pinstripe/data.vhost,reconnect=1 -device vhost-user-blk-pci,chardev=data",
    ),
    (
        "As a file, with a loop device over it:",
        "pinstripe serve --fuse /srv/data.disk /dev/sda /dev/sdb /dev/sdc & losetup --find --show --direct-io=on /srv/data.disk",
    ),
    (
        "NVMe by passthrough, polled:",
        "pinstripe serve --poll --shards 2 --cpus 2,3 /dev/ng0n1 /dev/ng1n1 /dev/ng2n1",
    ),
];

fn of_devices(command: &str) -> Parts {
    match command {
        "create" => (
            &[
                (
                    "A RAID5 of three devices:",
                    "pinstripe create --level 5 --name data /dev/disk/by-id/nvme-A /dev/disk/by-id/nvme-B /dev/disk/by-id/nvme-C",
                ),
                (
                    "A RAID6 with a log that closes the write hole:",
                    "pinstripe create --level 6 --consistency-policy double-parity-log /dev/sda /dev/sdb /dev/sdc /dev/sdd",
                ),
            ],
            ON_DEVICES,
            &["", "serve", "examine", "zero-superblock", "mdadm(8)", "md(4)"],
        ),
        "examine" => (
            &[
                ("What a device holds:", "pinstripe examine /dev/sda"),
                ("For a program:", "pinstripe examine --json /dev/sda /dev/sdb"),
                (
                    "All arrays that are found, as configuration:",
                    "pinstripe examine --scan > /etc/pinstripe/conf.d/found.toml",
                ),
            ],
            &[CONFIGURATION, SECRETS, HOST],
            &["", "assemble", "create", "detail", "mdadm(8)"],
        ),
        "zero-superblock" => (
            &[("Free a removed device for another use:", "pinstripe zero-superblock /dev/sdb")],
            ON_DEVICES,
            &["", "remove", "examine", "mdadm(8)"],
        ),
        "serve" => (
            EXAMPLES_OF_SERVE,
            &[CONTROL, NBD, UBLK, FUSE, SECRETS, HOST, JOINED],
            &["", "create", "detail", "stop", "ublk", "monitor", "nbd-client(8)", "losetup(8)", "md(4)"],
        ),
        "target" => (
            &[(
                "Two devices, for hosts that authenticate:",
                "pinstripe target --listen 192.0.2.7:4420 --dhchap-hosts /etc/pinstripe/secrets --dhchap-secrets /etc/pinstripe/secrets --state /var/lib/pinstripe --state-create --nqn nqn.2026-01.com.example:store7 /dev/disk/by-id/nvme-A /dev/disk/by-id/nvme-B",
            )],
            &[STATE, SECRETS],
            &["", "discover", "serve", "nvme-connect(1)"],
        ),
        _ => (
            &[
                ("What a server offers:", "pinstripe discover 192.0.2.7:4420"),
                (
                    "The arrays that its namespaces belong to:",
                    "pinstripe discover --namespaces 192.0.2.7:4420",
                ),
            ],
            ON_DEVICES,
            &["", "target", "serve", "nvme-discover(1)"],
        ),
    }
}

fn of_states(command: &str) -> Parts {
    match command {
        "list" => (
            &[("Everything that is served here:", "pinstripe list")],
            ON_SERVED,
            &["", "top", "detail", "serve"],
        ),
        "top" => (
            &[
                ("On a terminal, until q is pressed:", "pinstripe top"),
                ("What was done within ten seconds, as text:", "pinstripe top --once --interval 10"),
                ("For a program:", "pinstripe top --json"),
            ],
            ON_SERVED,
            &["", "list", "detail", "monitor", "iostat(1)"],
        ),
        _ => (
            &[
                ("The state of an array:", "pinstripe detail data"),
                (
                    "For a script: 0 fine, 1 degraded, 2 failed, 4 not there:",
                    "pinstripe detail --test data > /dev/null; echo $?",
                ),
            ],
            ON_SERVED,
            &["", "list", "monitor", "examine"],
        ),
    }
}

fn of_service(command: &str) -> Parts {
    match command {
        "monitor" => (
            &[
                (
                    "Run a program for every event, and write to the system's log:",
                    "pinstripe monitor data --program /usr/local/sbin/array-event --syslog",
                ),
                ("What is wrong now:", "pinstripe monitor --oneshot data"),
            ],
            &[CONTROL, ("/dev/log", "The system's log, with --syslog.")],
            &["", "detail", "syslog(3)"],
        ),
        "stop" => (
            &[
                ("Stop an array that nothing uses any more:", "pinstripe stop data"),
                ("Stop it although clients are connected:", "pinstripe stop --force data"),
                ("Stop all that are served here, or none if one of them is in use:", "pinstripe stop --all"),
            ],
            &[CONTROL, NBD],
            &["", "serve", "detail", "nbd-client(8)"],
        ),
        "sync" => (
            &[
                ("Pause resync, recovery, check and repair:", "pinstripe sync data pause"),
                (
                    "Set their speed, in KiB per second of each member:",
                    "pinstripe sync data --speed-min 1000 --speed-max 200000",
                ),
            ],
            ON_SERVED,
            &["", "check", "repair", "detail", "md(4)"],
        ),
        "record" => (
            &[
                ("A minute of what clients ask for:", "pinstripe record data data.iolog --seconds 60"),
                (
                    "The same again on memory, at its times:",
                    "pinstripe bench --trace data.iolog --trace-time",
                ),
            ],
            ON_SERVED,
            &["", "bench", "top", "fio(1)", "blktrace(8)"],
        ),
        "check" => (
            &[("For example, once a month:", "pinstripe check data")],
            ON_SERVED,
            &["", "repair", "sync", "md(4)"],
        ),
        _ => (
            &[
                ("On level 6, correct the one member that is wrong:", "pinstripe repair --locate data"),
                ("Make parity from data:", "pinstripe repair data"),
            ],
            ON_SERVED,
            &["", "check", "sync", "md(4)"],
        ),
    }
}

fn of_members(command: &str) -> Parts {
    match command {
        "add" => (
            &[
                ("A device takes an empty slot, or waits as a spare:", "pinstripe add data /dev/sdd"),
                ("Wait until it is rebuilt:", "pinstripe add --wait data /dev/sdd"),
            ],
            ON_SERVED,
            &["", "fail", "remove", "replace", "detail"],
        ),
        "fail" => (
            &[
                ("By its slot:", "pinstripe fail data 2"),
                ("By its name:", "pinstripe fail data /dev/sdc"),
                ("The journal; the array is read-only then:", "pinstripe fail data journal"),
            ],
            ON_SERVED,
            &["", "add", "remove", "replace", "detail"],
        ),
        "remove" => (
            &[("Take a failed device out of the array:", "pinstripe remove data /dev/sdc")],
            ON_SERVED,
            &["", "fail", "add", "zero-superblock"],
        ),
        "replace" => (
            &[
                ("With a new device:", "pinstripe replace data /dev/sdc --with /dev/sdd --wait"),
                ("With a spare:", "pinstripe replace data 2"),
            ],
            ON_SERVED,
            &["", "add", "fail", "remove", "detail"],
        ),
        _ => (
            &[
                ("Close the write hole of a RAID5:", "pinstripe grow data --consistency-policy ppl"),
                (
                    "Another bitmap:",
                    "pinstripe grow data --bitmap none; pinstripe grow data --bitmap internal --bitmap-chunk 16M",
                ),
            ],
            ON_SERVED,
            &["", "create", "detail", "md(4)"],
        ),
    }
}

fn of_configuration(command: &str) -> Parts {
    match command {
        "assemble" => (
            &[
                ("What would be started:", "pinstripe assemble --scan --dry-run"),
                ("All arrays of the configuration:", "pinstripe assemble --scan"),
                ("One array:", "pinstripe assemble --name data"),
                ("As a unit of systemd does it:", "pinstripe assemble --foreground --name data"),
            ],
            &[CONFIGURATION, CONTROL, LOG, JOINED],
            &["", "config", "examine", "incremental", "serve", "stop", "mdadm(8)"],
        ),
        "incremental" => (
            &[
                ("A device has appeared:", "pinstripe incremental /dev/sdc"),
                ("What udev's rules want to know of it:", "pinstripe incremental --export /dev/sdc"),
            ],
            &[CONFIGURATION, CONTROL, LOG, JOINED],
            &["", "assemble", "add", "config", "udev(7)"],
        ),
        _ => (
            &[
                ("Is the configuration right?", "pinstripe config check"),
                (
                    "What systemd's generator writes of it:",
                    "pinstripe config units /tmp/units; find /tmp/units",
                ),
            ],
            &[CONFIGURATION],
            &["", "assemble", "serve"],
        ),
    }
}

fn of_the_rest(command: &str) -> Parts {
    match command {
        "ublk" => (
            &[
                ("The devices, and how they are:", "pinstripe ublk list"),
                ("Give up what a dead server has left:", "pinstripe ublk delete 0 --force"),
            ],
            &[UBLK, UBLK_CONTROL],
            &["", "serve", "stop"],
        ),
        "demo" => (
            &[
                ("The life of an array:", "pinstripe demo"),
                ("The life of an array on four servers:", "pinstripe demo --disaggregated"),
            ],
            &[DEMO],
            &["", "create", "serve"],
        ),
        "bench" | "plan" => of_measuring(command),
        "completions" => (
            &[("For bash:", "pinstripe completions bash > /etc/bash_completion.d/pinstripe")],
            &[("/etc/bash_completion.d/pinstripe", "Where bash looks for completions.")],
            &["", "man", "bash(1)"],
        ),
        "man" => (
            &[
                ("One page:", "pinstripe man serve | man -l -"),
                ("All of them:", "pinstripe man --folder /usr/local/share/man/man1"),
            ],
            &[MANUALS],
            &["", "completions", "man(1)"],
        ),
        _ => of_the_command(),
    }
}

fn of_measuring(command: &str) -> Parts {
    match command {
        "bench" => (
            &[
                ("The engine on memory:", "pinstripe bench --level 5 --seconds 4"),
                (
                    "On devices, which are overwritten:",
                    "pinstripe bench --force --device /dev/sda --device /dev/sdb --device /dev/sdc",
                ),
                ("Over NBD, as a client has it:", "pinstripe bench --through nbd --size 64K"),
                ("The same as a virtual machine has it:", "pinstripe bench --through vhost-user --size 64K"),
                ("What a served array was asked:", "pinstripe bench --trace data.iolog"),
                (
                    "A synthetic trace, after what is published of one:",
                    "pinstripe bench --synthetic prxy_0 --chunk 8K",
                ),
                (
                    "What one device is able to do, for pinstripe plan; its data is lost:",
                    "pinstripe bench --probe /dev/sda --probe-writes --force --json > sda.json",
                ),
            ],
            ON_DEVICES,
            &["", "create", "plan", "record", "fio(1)"],
        ),
        _ => (
            &[
                (
                    "Eight disks of 640 GB with two parities, and how safe they are:",
                    "pinstripe plan --device model:7200rpm:596G --members 8 --level 6",
                ),
                (
                    "The same while two of them are missing:",
                    "pinstripe plan --device model:7200rpm:596G --members 8 --level 6 --lost 0,1",
                ),
                (
                    "Flash that is written all the time, scrubbed every week:",
                    "pinstripe plan --device model:980-pro:931G --members 5 --used-up --scrub-every 7",
                ),
                ("Drives that were measured:", "pinstripe plan --device sda.json --members 5 --size 64K"),
                (
                    "What a served array was asked:",
                    "pinstripe plan --device model:860-pro:476G --trace data.iolog --trace-time",
                ),
            ],
            &[("FILE.json", "What `pinstripe bench --probe DEVICE --json` printed.")],
            &["", "bench", "record", "check"],
        ),
    }
}

fn of_the_command() -> Parts {
    (
        &[
            (
                "Make an array, serve it, look at it, stop it:",
                "pinstripe create --level 5 --name data /dev/sda /dev/sdb /dev/sdc",
            ),
            ("", "pinstripe serve /dev/sda /dev/sdb /dev/sdc &"),
            ("", "pinstripe detail data"),
            ("", "pinstripe stop data"),
        ],
        &[CONFIGURATION, CONTROL, NBD, SECRETS, STATE, HOST],
        &[
            "create",
            "examine",
            "assemble",
            "incremental",
            "config",
            "zero-superblock",
            "serve",
            "list",
            "top",
            "detail",
            "add",
            "fail",
            "remove",
            "replace",
            "grow",
            "check",
            "repair",
            "sync",
            "record",
            "monitor",
            "stop",
            "target",
            "discover",
            "bench",
            "plan",
            "demo",
            "man",
            "completions",
            "mdadm(8)",
            "md(4)",
            "nbd-client(8)",
        ],
    )
}
