//! docs/configuration.md: made of the list of keys, and of what the command line says of the options.

use std::fmt::Write;

use clap::CommandFactory;
use pinstripe_config::keys::{
    ALERTS, ARRAY, AUTO, DAEMON, DUTIES, METRICS, OPTIONS, OptionKey, SCAN, TARGET, TARGET_OPTIONS, WEB,
    Where,
};

use super::{OF_ARRAY, check};
use crate::command_line::Cli;

/// If this is set, the test writes the page instead of comparing it.
const WRITE: &str = "PINSTRIPE_WRITE_DOCS";

const HEAD: &str = r#"# The configuration

This page is made by a test of the code; `PINSTRIPE_WRITE_DOCS=1 cargo test -p pinstripe the_page_of_the_configuration`
writes it anew.

Pinstripe reads `/etc/pinstripe/pinstripe.toml`, and then the files `conf.d/*.toml` beside it, in the order of their names.
`--config FILE` or the variable `PINSTRIPE_CONFIG` names another main file. The language is [TOML](https://toml.io). Unknown
keys, wrong types, and what stands there twice are errors: `pinstripe config check` shows all of them with file and line.
A file is refused if users other than root and the one that reads it can change or exchange it.

```toml
[defaults]
cache = "256M"
sync-speed-max = 200000

[[array]]
name = "data"
run-after = 60
ublk = 0

[[array]]
uuid = "6d41c174:a77e88e8:3d543c04:9a78354b"
members = ["/dev/disk/by-id/nvme-*", "nvme-tcp://192.0.2.11:4420/nqn.2026-01.com.example:alpha?nsid=1"]
nbd = ["unix:/run/pinstripe/log.nbd", "tcp:127.0.0.1:10809"]
auto = false

[[target]]
name = "store"
listen = "192.0.2.7:4420"
nqn = "nqn.2026-01.com.example:store7"
devices = ["/dev/disk/by-id/nvme-SAMSUNG_A", "/dev/disk/by-id/nvme-SAMSUNG_B"]
dhchap-hosts = "/etc/pinstripe/secrets"
dhchap-secrets = "/etc/pinstripe/secrets"
state = "/var/lib/pinstripe"
allow-missing = true
```

`pinstripe examine --scan` prints an `[[array]]` for every array that is found.
"#;

fn page() -> String {
    let mut text = HEAD.to_owned();
    text += "\n## [[array]]\n\nOne for each array. Which array it is, and what becomes of it:\n\n| key | \
        value | what it says |\n|---|---|---|\n";
    for key in ARRAY {
        row(&mut text, key.name, key.kind.in_words(), key.doc);
    }
    text += "\nHow it is served: the options of `pinstripe serve` of the same names, with their \
        defaults.\n\n| key | value | what it says |\n|---|---|---|\n";
    options(&mut text, "serve", &OPTIONS);
    text += "\nWhat `pinstripe daemon` does for it:\n\n| key | value | what it says |\n|---|---|---|\n";
    for key in DUTIES {
        row(&mut text, key.name, key.kind.in_words(), key.doc);
    }
    text += "\n## [[target]]\n\nOne for each `pinstripe target` of this machine, which hosts reach over NVMe/TCP: the unit \
        `pinstripe-target@NAME.service`\nruns it ([units](install.md#servers-of-members)).\n\n\
        | key | value | what it says |\n|---|---|---|\n";
    for key in TARGET {
        row(&mut text, key.name, key.kind.in_words(), key.doc);
    }
    text += "\nThe options of `pinstripe target` of the same names; `listen` and `nqn` are needed:\n\n| key | value | what it \
        says |\n|---|---|---|\n";
    options(&mut text, "target", &TARGET_OPTIONS);
    text += "\n## [defaults]\n\nWhat holds for every array that doesn't say otherwise. It has the keys of \
        `[[array]]` that two arrays can have\nalike:\n\n";
    let shared = OPTIONS.iter().filter(|key| key.place == Where::Anywhere).map(|key| key.name);
    let duties = DUTIES.iter().map(|key| key.name);
    let names = std::iter::once(AUTO.name).chain(shared).chain(duties);
    let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    for line in names.chunks(6) {
        let _ = writeln!(text, "{},", line.join(", "));
    }
    text.truncate(text.trim_end_matches(",\n").len());
    text += ".\n`ublk` is `true` or `false` here.\n\n## [scan]\n\n| key | value | what it says |\n|---|---|---|\n";
    for key in SCAN {
        row(&mut text, key.name, key.kind.in_words(), key.doc);
    }
    text += "\n## [metrics]\n\n| key | value | what it says |\n|---|---|---|\n";
    for key in METRICS {
        row(&mut text, key.name, key.kind.in_words(), key.doc);
    }
    text += "\n## [daemon]\n\nOptions of `pinstripe daemon` of the same names, which come before these. They count from its next start \
        on.\n\n| key | value | what it says |\n|---|---|---|\n";
    options(&mut text, "daemon", &DAEMON);
    text += "\n## [web]\n\n| key | value | what it says |\n|---|---|---|\n";
    for key in WEB {
        row(&mut text, key.name, key.kind.in_words(), key.doc);
    }
    text += "\n## [alerts]\n\nWhere `pinstripe daemon` sends alerts: each when it begins, and when it is over.\n\n\
        | key | value | what it says |\n|---|---|---|\n";
    for key in ALERTS {
        row(&mut text, key.name, key.kind.in_words(), key.doc);
    }
    text
}

/// Rows for options of a command.
fn options(text: &mut String, command: &str, keys: &[OptionKey]) {
    let mut cli = Cli::command();
    cli.build();
    let command = cli.find_subcommand(command).unwrap();
    for key in keys {
        let option = command.get_arguments().find(|option| option.get_long() == Some(key.name)).unwrap();
        let mut doc = option.get_help().unwrap().to_string();
        let values: Vec<String> = option
            .get_possible_values()
            .iter()
            .filter(|value| !matches!(value.get_name(), "true" | "false"))
            .map(|value| format!("`{}`", value.get_name()))
            .collect();
        if !values.is_empty() {
            let _ = write!(doc, ": {}", values.join(", "));
        }
        let default = option.get_default_values().first().and_then(|value| value.to_str());
        if let Some(default) = default.filter(|default| *default != "false") {
            let _ = write!(doc, " [default: {default}]");
        }
        row(text, key.name, key.kind.in_words(), &doc);
    }
}

fn row(text: &mut String, name: &str, kind: &str, doc: &str) {
    let _ = writeln!(text, "| `{name}` | {kind} | {} |", doc.replace('|', "\\|").replace('\n', " "));
}

#[test]
fn the_page_of_the_configuration_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(path, page()).unwrap();
    }
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text == page(), "docs/configuration.md is out of date: run this test with {WRITE}=1");
}

#[test]
fn the_example_of_the_page_is_a_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pinstripe.toml");
    let example = HEAD.split("```").nth(1).unwrap().strip_prefix("toml").unwrap();
    std::fs::write(&path, example).unwrap();
    let configuration = super::load(Some(&path)).unwrap();
    assert_eq!((configuration.arrays.len(), configuration.targets.len()), (2, 1));
}

#[test]
fn every_key_is_an_option_of_serve_and_takes_values_of_its_kind() {
    use pinstripe_config::{Place, Setting, Value, keys::Kind};
    let place = Place { file: "f".into(), line: Some(1) };
    for key in OPTIONS {
        let value = match key.kind {
            Kind::Flag => Value::Flag(true),
            // More than its counterpart, which is at least 1.
            Kind::Number if key.name == "sync-speed-max" => Value::Number(20_000),
            Kind::Number if key.name == "logical-block" => Value::Number(4096),
            Kind::Number => Value::Number(7),
            // Enough for as many shards as a test has CPUs.
            Kind::Size if key.name == "memory-max" => Value::Text("1G".to_owned()),
            Kind::Size => Value::Text("1M".to_owned()),
            Kind::FlagOrNumber => Value::Number(3),
            // Whether a text is one that the option takes is looked at below.
            Kind::Text | Kind::Path | Kind::List => continue,
        };
        let settings = [(key.name, Setting { value, place: place.clone() })].into();
        let mut problems = Vec::new();
        check(OF_ARRAY, &settings, &place, &mut problems);
        // One that goes with another option only is known, at least.
        assert!(
            problems.iter().all(|problem| problem.what.contains("required")),
            "{}: {problems:?}",
            key.name
        );
    }
    let text = |text: &str| Setting {
        value: Value::Text(text.to_owned()),
        place: Place { file: "f".into(), line: Some(2) },
    };
    let settings = [("policy", text("fast")), ("cpus", text("x")), ("cache", text("64M"))].into();
    let mut problems = Vec::new();
    check(OF_ARRAY, &settings, &place, &mut problems);
    let words: Vec<String> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(words.len(), 2, "{words:?}");
    assert!(
        words.iter().any(|w| w.starts_with("f:2: \"policy\": invalid value 'fast'") && w.contains("cost")),
        "{words:?}"
    );
    assert!(
        words.iter().any(|w| w.starts_with("f:2: \"cpus\": ") && w.contains("is no list of CPUs")),
        "{words:?}"
    );
}
