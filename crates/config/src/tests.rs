//! What is read, what is refused, and with which line.

use std::{fs, os::unix::fs::PermissionsExt};

use super::*;

/// A folder with configuration files.
struct Files(tempfile::TempDir);

impl Files {
    fn new(files: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join(FOLDER)).unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn load(&self) -> Result<Configuration, Problems> {
        Configuration::load_from(Some(&self.path("main.toml")), None, None)
    }

    /// All errors, each as `FILE:LINE: WORDS` with the file's name only.
    fn errors(&self) -> Vec<String> {
        let Problems(problems) = self.load().unwrap_err();
        let prefix = format!("{}/", self.0.path().display());
        problems.iter().map(|problem| problem.to_string().replace(&prefix, "")).collect()
    }
}

#[test]
fn a_file_that_is_still_to_be_written_is_read_with_the_others() {
    let files = Files::new(&[
        ("main.toml", "[defaults]\nshards = 2\n[[array]]\nname = 'a'\n"),
        ("conf.d/b.toml", "nonsense"),
    ]);
    let path = files.path("conf.d/b.toml");
    let with = |text| Configuration::load_with(Some(&files.path("main.toml")), &path, text);
    let loaded = with("[[array]]\nname = 'b'\n").unwrap();
    let b = &loaded.arrays[1];
    assert_eq!((b.name.as_deref(), b.place.to_string()), (Some("b"), format!("{}:1", path.display())));
    assert!(b.settings.contains_key("shards"), "it has the defaults");
    assert!(with("[[array]]\nname = 'a'\n").unwrap_err().to_string().contains("stands in"));
    assert_eq!(fs::read_to_string(path).unwrap(), "nonsense");
}

#[test]
fn only_a_main_file_that_is_not_there_is_none() {
    let files = Files::new(&[("main.toml", "")]);
    assert!(may_be_there(&files.path("main.toml")));
    assert!(!may_be_there(&files.path("other.toml")));
    assert!(!may_be_there(&files.path("folder/other.toml")));
    // Of what can't be looked at.
    assert!(may_be_there(&files.path("main.toml/other.toml")));
    assert!(may_be_there(&files.path(&"x".repeat(1000))));
}

#[track_caller]
fn errors(text: &str, expected: &[&str]) {
    let found = Files::new(&[("main.toml", text)]).errors();
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.starts_with("main.toml:") && found.contains(expected), "{found} is not: {expected}");
    }
}

#[test]
fn an_array_has_the_defaults_where_it_says_nothing_itself() {
    let files = Files::new(&[
        (
            "main.toml",
            "[defaults]\nauto = false\nshards = 2\nread-only = true\npolicy = 'cost'\n[scan]\ndevices = ['/dev/sd?']\n",
        ),
        ("conf.d/b.toml", "[[array]]\nname = 'b'\n"),
        (
            "conf.d/a.toml",
            "[[array]]\nuuid = '6d41c174:a77e88e8:3d543c04:9a78354b'\nmembers = ['/dev/sda']\nauto = \
                true\nshards = 4\nread-only = false\ncache = '64M'\nublk = 7\nspare-pool = ['a:1', \
                'b:2']\n",
        ),
        ("conf.d/.c.toml", "nonsense"),
        ("conf.d/c.toml~", "nonsense"),
    ]);
    let configuration = files.load().unwrap();
    let [a, b] = &configuration.arrays[..] else { panic!("{configuration:?}") };
    let words =
        ["--cache=64M", "--policy=cost", "--shards=4", "--spare-pool=a:1", "--spare-pool=b:2", "--ublk=7"];
    assert_eq!(a.words(), words);
    assert!(a.auto && !b.auto);
    assert_eq!(b.words(), ["--policy=cost", "--read-only", "--shards=2"]);
    assert_eq!(a.place, Place { file: files.path("conf.d/a.toml"), line: Some(1) });
    assert_eq!(configuration.scan.devices, Some(vec!["/dev/sd?".to_owned()]));
    assert_eq!(configuration.files.len(), 3);
}

#[test]
fn an_array_is_the_one_of_its_uuid_and_its_name() {
    let text = "[[array]]\nname = 'data'\n[[array]]\nuuid = '6d41c174-a77e-88e8-3d54-3c049a78354b'\nname = 'host:log'\n";
    let configuration = Files::new(&[("main.toml", text)]).load().unwrap();
    let [data, log] = &configuration.arrays[..] else { panic!("{configuration:?}") };
    let (one, other) = (Uuid([1; 16]), "6d41c174:a77e88e8:3d543c04:9a78354b".parse().unwrap());
    assert!(data.is(one, "data") && data.is(other, "host:data") && !data.is(one, "data2"));
    assert!(log.is(other, "host:log") && !log.is(one, "host:log") && !log.is(other, "log"));
}

#[test]
fn every_error_is_said_with_its_line() {
    errors(
        "[defaults]\nshard = 2\nmember_timeout = 3\n[alert]\n",
        &[
            "2: unknown key \"shard\": [defaults] has ublk, socket-mode",
            "3: unknown key \"member_timeout\": the key is \"member-timeout\"",
            "4: unknown section or key \"alert\"",
        ],
    );
    errors(
        "[[array]]\nname = 'a'\nshards = 'two'\nread-only = 1\nnbd = 'unix:/a'\nfuse = 'a'\ncache = true\nrun-after = -1\n",
        &[
            "3: \"shards\" must be a whole number",
            "4: \"read-only\" must be true or false",
            "5: \"nbd\" must be a list of texts",
            "6: \"fuse\" must be an absolute path",
            "7: \"cache\" must be a size",
            "8: \"run-after\" must be a whole number",
        ],
    );
    errors("[[array]]\nname = 'a'\nname = 'b'\n", &["3: duplicate key"]);
    errors("[[array]]\nname = \n", &["2: "]);
    errors(
        "[alerts]\nprogram = 'x'\nmail = 'a b'\nwebhook = 'ftp://x'\nmails = 'root'\n",
        &[
            "2: \"program\" must be an absolute path",
            "3: \"mail\": a mail",
            "4: \"webhook\": a webhook",
            "5: unknown key \"mails\"",
        ],
    );
    errors(
        "[metrics]\nlisten = 'localhost'\nport = 7\n",
        &["2: \"listen\" is ADDRESS:PORT", "3: unknown key \"port\""],
    );
    errors(
        "[web]\nlisten = 'localhost'\ntoken-file = 'x'\ntoken = 'y'\n",
        &[
            "2: \"listen\": ADDRESS:PORT",
            "3: \"token-file\" must be an absolute path",
            "4: unknown key \"token\"",
        ],
    );
    errors("array = 3\ndefaults = 4\n", &["1: every array", "2: defaults is a section"]);
}

#[test]
fn an_error_is_of_its_entry_of_the_daemon_or_of_all() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pinstripe.toml");
    let usable = |text: &str| {
        std::fs::write(&path, text).unwrap();
        assert!(Configuration::load(Some(&path)).is_err(), "{text}");
        Configuration::load_usable(Some(&path))
    };
    let wrong = |text: &str| -> Vec<Option<usize>> {
        let usable = usable(text).unwrap();
        assert!(!usable.problems.is_empty(), "{text}");
        assert_eq!(usable.is_daemon_wrong, usable.wrong.is_empty(), "{text}");
        usable.wrong.iter().map(|place| place.line).collect()
    };
    let two =
        |one: &str, other: &str| format!("[[array]]\nname = 'a'\n{one}\n[[array]]\nname = 'b'\n{other}\n");
    assert_eq!(wrong(&two("weight = 10000", "x = 1")), [Some(4)]);
    assert_eq!(wrong(&two("weight = 0", "weight = 10001")), [Some(1), Some(4)]);
    assert_eq!(wrong(&two("cache = true", "x = 1")), [Some(1), Some(4)]);
    assert_eq!(wrong(&two("", "[[array]]\nmembers = ['/a']")), [Some(6)], "it names no array");
    assert_eq!(wrong(&two("", "[[target]]\nname = 'x'")), [Some(6)]);
    // Which of two is meant is not known.
    assert_eq!(wrong(&two("", "[[array]]\nname = 'a'")), [Some(6), Some(1)]);
    for of_daemon in
        ["[web]\nlisten = 'x'", "[alerts]\nx = 1", "[metrics]\ntls-clients = 'any'", "[daemon]\nx = 1"]
    {
        assert_eq!(wrong(&two("", of_daemon)), [], "{of_daemon}");
        assert!(usable(&two("", of_daemon)).unwrap().is_daemon_wrong, "{of_daemon}");
    }
    for of_all in ["[defaults]\nx = 1", "[scan]\ndevices = []", "[unknown]", "x = "] {
        assert!(usable(&two("", of_all)).is_err(), "{of_all}");
    }
}

#[test]
fn an_array_must_be_named_by_what_can_be_its_name() {
    errors("\n[[array]]\nshards = 2\n", &["2: this [[array]] doesn't say which array it is"]);
    errors("[[array]]\nuuid = 'x'\n", &["2: 'x' is no UUID"]);
    for name in ["", "a/b", ".a", "host:", "a\\u0007", "da\\u200bta", "123456789012345678901234567890123"] {
        errors(&format!("[[array]]\nname = \"{name}\"\n"), &["2: a name has 1 to 32 bytes"]);
    }
}

#[test]
fn an_array_and_a_default_stand_there_once() {
    let uuid = "uuid = '6d41c174:a77e88e8:3d543c04:9a78354b'";
    let files = Files::new(&[
        ("main.toml", &format!("[defaults]\nshards = 2\n[[array]]\n{uuid}\n[[array]]\nname = 'a'\n")),
        (
            "conf.d/a.toml",
            &format!("[defaults]\nshards = 2\n[[array]]\nname = 'a'\n[[array]]\n{uuid}\nname = 'b'\n"),
        ),
    ]);
    let errors = files.errors();
    assert_eq!(errors.len(), 3, "{errors:#?}");
    assert!(
        errors[0].starts_with("conf.d/a.toml:2: [defaults] shards stands in main.toml:2 already"),
        "{errors:#?}"
    );
    assert!(
        errors[1].starts_with("conf.d/a.toml:3: the array a stands in main.toml:5 already"),
        "{errors:#?}"
    );
    assert!(
        errors[2].starts_with("conf.d/a.toml:5: the array b stands in main.toml:3 already"),
        "{errors:#?}"
    );
}

#[test]
fn every_key_of_a_section_stands_there_once_whatever_its_value() {
    let files = Files::new(&[
        ("main.toml", "[defaults]\nauto = true\ncheck-every = '30d'\n[scan]\nassemble = 'configured'\n"),
        ("conf.d/a.toml", "[defaults]\nauto = false\ncheck-every = 'never'\n[scan]\nassemble = 'all'\n"),
    ]);
    let errors = files.errors();
    for (error, key) in
        errors.iter().zip(["2: [defaults] auto", "3: [defaults] check-every", "5: [scan] assemble"])
    {
        assert!(error.starts_with(&format!("conf.d/a.toml:{key} stands in main.toml:")), "{errors:#?}");
    }
    assert_eq!(errors.len(), 3, "{errors:#?}");
}

#[test]
fn the_daemons_duties_come_from_the_defaults_and_are_checked() {
    let text = "[defaults]\ncheck-every = '30d'\ncheck-window = '01:00-05:00'\n[[array]]\nname = 'a'\n\
        spare-group = 'g'\n[[array]]\nname = 'b'\ncheck-every = 'never'\n";
    let configuration = Files::new(&[("main.toml", text)]).load().unwrap();
    let [a, b] = &configuration.arrays[..] else { panic!() };
    assert_eq!((a.duties.check_every, a.duties.spare_group.as_deref()), ("30d".parse().ok(), Some("g")));
    assert_eq!(
        (b.duties.check_every, b.duties.check_window),
        ("never".parse().ok(), "01:00-05:00".parse().ok())
    );
    assert!(a.words().is_empty(), "no option of serve");
    errors(
        "[[array]]\nname = 'a'\ncheck-every = '5m'\ncheck-window = 'night'\nspare-group = 7\n",
        &[
            "main.toml:3: \"check-every\": a time",
            "main.toml:4: \"check-window\": a window",
            "main.toml:5: \"spare-group\" must be",
        ],
    );
}

#[test]
fn what_only_one_array_can_have_is_no_default() {
    errors(
        "[defaults]\nnbd = ['tcp:127.0.0.1:10809']\nublk = 3\n",
        &["2: \"nbd\" can't hold for every array", "3: two arrays can't have one ublk number"],
    );
    assert!(Files::new(&[("main.toml", "[defaults]\nublk = true\n")]).load().is_ok());
}

#[test]
fn devices_are_named_by_absolute_paths() {
    errors("[scan]\ndevices = ['sda']\n", &["2: \"sda\" is no absolute path"]);
    errors("[scan]\ndevices = ['/**/sda']\n", &["2: \"/**/sda\": \"**\" is not taken"]);
    errors("[scan]\ndevices = ['/dev/[']\n", &["2: \"/dev/[\" is no glob"]);
    errors(
        "[scan]\ndevices = []\nassemble = 'some'\n",
        &["2: \"devices\" names nothing", "3: \"assemble\" is"],
    );
    errors(
        "[scan]\ndevices = ['nvme-tcp://a:1/b?nsid=1']\n",
        &["2: \"nvme-tcp://a:1/b?nsid=1\" is on a server"],
    );
    errors(
        "[[array]]\nname='a'\nmembers = ['pmem:x']\nnbd = ['unix:x']\n",
        &["3: \"pmem:x\"", "4: a socket's path"],
    );
    let text = "[[array]]\nname='a'\nmembers = ['nvme-tcp://a:1/b?nsid=1', 'pmem:/x/*', '/dev/sd?']\n";
    assert!(Files::new(&[("main.toml", text)]).load().is_ok());
}

#[test]
fn a_file_that_others_can_write_is_refused() {
    let files = Files::new(&[("main.toml", ""), ("conf.d/a.toml", "")]);
    assert!(files.load().is_ok());
    fs::set_permissions(files.path("conf.d/a.toml"), fs::Permissions::from_mode(0o664)).unwrap();
    let errors = files.errors();
    assert!(
        errors.len() == 1 && errors[0].contains("conf.d/a.toml: the configuration can be written by other"),
        "{errors:?}"
    );
    fs::set_permissions(files.path("conf.d/a.toml"), fs::Permissions::from_mode(0o644)).unwrap();
    fs::set_permissions(files.path("conf.d"), fs::Permissions::from_mode(0o777)).unwrap();
    let errors = files.errors();
    assert!(errors.len() == 1 && errors[0].contains("can't be trusted"), "{errors:?}");
}

/// The daemon tells of its files in JSON, which has no other names.
#[test]
fn a_file_whose_name_is_no_utf_8_counts_and_can_be_told_of() {
    use std::os::unix::ffi::OsStrExt;
    let files = Files::new(&[("main.toml", "")]);
    let name = std::ffi::OsStr::from_bytes(b"\xff.toml");
    fs::write(files.0.path().join(FOLDER).join(name), "[[array]]\nname = 'data'\n").unwrap();
    let configuration = files.load().unwrap();
    assert_eq!(configuration.arrays.len(), 1);
    assert!(configuration.files.len() == 2 && configuration.files.iter().all(|file| file.to_str().is_some()));
}

#[test]
fn only_the_usual_file_may_be_missing() {
    let files = Files::new(&[]);
    assert!(files.load().unwrap_err().to_string().contains("main.toml: the configuration can't be read"));
    let by_variable = Configuration::load_from(None, Some(files.path("other.toml").into()), None);
    assert!(by_variable.unwrap_err().to_string().contains("other.toml"));
    fs::create_dir(files.path("main.toml")).unwrap();
    assert!(files.load().unwrap_err().to_string().contains("is no configuration"));
}

#[test]
fn a_default_that_goes_with_an_option_is_for_arrays_that_have_it() {
    let text = "[defaults]\ndhchap-hosts = '/h'\nspare-pool-delay = 5\n\
        [[array]]\nname = 'net'\nnvme-tcp = '127.0.0.1:4420'\n[[array]]\nname = 'own'\nspare-pool-delay = 7\n";
    let configuration = Files::new(&[("main.toml", text)]).load().unwrap();
    let keys = |index: usize| configuration.arrays[index].settings.keys().copied().collect::<Vec<_>>();
    assert_eq!(keys(0), ["dhchap-hosts", "nvme-tcp"]);
    assert_eq!(keys(1), ["spare-pool-delay"], "what it says itself counts, right or wrong");
}

#[test]
fn a_glob_gives_what_it_matches_sorted_and_once() {
    use std::os::unix::ffi::OsStrExt;
    let files = Files::new(&[("b", ""), ("a", ""), (".hidden", "")]);
    fs::write(files.0.path().join(std::ffi::OsStr::from_bytes(b"\xff")), "").unwrap();
    let name = |name: &str| files.path(name).display().to_string();
    let names = [
        name("b"),
        name("?"),
        name("x*"),
        name("gone"),
        "nvme-tcp://a:1/b*?nsid=1".to_owned(),
        format!("pmem:{}", name("[a]")),
    ];
    let expanded = expand(&names);
    let expected = [name("b"), name("a"), name("gone"), names[4].clone(), format!("pmem:{}", name("a"))];
    assert_eq!(expanded.paths, expected.map(PathBuf::from));
    assert_eq!(expanded.empty, [name("x*")]);
    assert_eq!(expand(&[name("*")]).paths, ["a", "b", FOLDER].map(|name| files.path(name)));
    assert_eq!(expand(&[name(".h*")]).paths, [files.path(".hidden")]);
}

#[test]
fn without_tls_the_page_is_served_on_loopback_addresses_only() {
    for address in ["127.0.0.1:9661", "[::1]:9661", "127.1.2.3:0"] {
        crate::check_web(crate::web_address(address).unwrap(), false).unwrap();
    }
    for address in
        ["0.0.0.0:9661", "[::]:9661", "192.0.2.1:9661", "[fe80::1]:9661", "[::ffff:127.0.0.1]:9661"]
    {
        let parsed = crate::web_address(address).unwrap();
        assert!(crate::check_web(parsed, false).unwrap_err().contains("without TLS"), "{address}");
        crate::check_web(parsed, true).unwrap();
        errors(
            &format!("[web]\nlisten = '{address}'\n"),
            &["2: \"listen\": without TLS the page is served on"],
        );
    }
}

#[test]
fn tls_of_the_daemon_may_be_configured_in_several_files() {
    let page = "[web]\nlisten = '192.0.2.1:9661'\n";
    let tls =
        "[web]\ntls-certificates = '/t'\ntls-clients = 'certified'\n[metrics]\ntls-certificates = '/m'\n";
    let files = Files::new(&[("main.toml", page), ("conf.d/a.toml", tls)]);
    let configuration = files.load().unwrap();
    let tls = |folder: &str, certified| Some(crate::Tls { certificates: folder.into(), certified });
    assert_eq!(configuration.web.tls, tls("/t", true));
    assert_eq!(configuration.metrics.tls, tls("/m", false));
    errors("[web]\ntls-clients = 'any'\n", &["2: \"tls-clients\" counts only with"]);
    let some = "[metrics]\ntls-certificates = '/t'\ntls-clients = 'some'\n";
    errors(some, &["3: \"tls-clients\" is \"any\""]);
    errors("[web]\ntls-certificates = 't'\n", &["2: \"tls-certificates\""]);
}

const TARGET: &str =
    "[[target]]\nname = 'store'\nlisten = '192.0.2.7:4420'\nnqn = 'nqn.2026-01.com.example:a'\n";

#[test]
fn a_target_is_read_with_its_options_and_its_devices_in_their_order() {
    let text = format!("{TARGET}devices = ['/dev/b', '/dev/a']\nshards = 2\nallow-missing = true\n");
    let Configuration { targets, arrays, .. } = Files::new(&[("main.toml", &text)]).load().unwrap();
    let [target] = &targets[..] else { panic!("{targets:?}") };
    assert_eq!((target.name.as_str(), target.auto, target.place.line), ("store", true, Some(1)));
    assert_eq!(target.devices, ["/dev/b", "/dev/a"]);
    let words: Vec<String> = target.settings.iter().flat_map(|(name, setting)| setting.words(name)).collect();
    let expected =
        ["--allow-missing", "--listen=192.0.2.7:4420", "--nqn=nqn.2026-01.com.example:a", "--shards=2"];
    assert_eq!(words, expected);
    assert!(arrays.is_empty());
}

#[test]
fn a_target_that_lacks_something_or_has_something_else_is_refused() {
    errors("[[target]]\nname = 'a'\n", &["this [[target]] lacks devices, listen, nqn"]);
    errors("[target]\nname = 'a'\n", &["write [[target]]"]);
    errors(&format!("{TARGET}devices = []\n"), &["names nothing"]);
    errors(&format!("{TARGET}devices = ['/dev/a', 'sdb']\n"), &["sdb isn't the absolute path of one device"]);
    errors(&format!("{TARGET}devices = ['/dev/sd*']\n"), &["isn't the absolute path of one device"]);
    errors(
        &format!("{TARGET}devices = ['/dev/a']\nublk = true\n"),
        &["unknown key \"ublk\": [[target]] has"],
    );
    errors(
        &format!("{TARGET}devices = ['/dev/a']\nallow_missing = true\n"),
        &["the key is \"allow-missing\""],
    );
    errors(&TARGET.replace("'store'", "'a b'"), &["lacks devices", "letters, digits"]);
    let two = format!("{TARGET}devices = ['/dev/a']\n{TARGET}devices = ['/dev/b']\n");
    errors(&two, &["the target store stands in"]);
}
