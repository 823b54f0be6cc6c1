//! The fields of all results, as docs/control-protocol.md has them: made from the types and what is said of
//! them there.

use std::fmt::Write;

const SOURCES: &[&str] = &[
    include_str!("../src/lib.rs"),
    include_str!("../src/detail.rs"),
    include_str!("../src/latency.rs"),
    include_str!("../src/limit.rs"),
    include_str!("../src/maintenance.rs"),
    include_str!("../src/record.rs"),
    include_str!("../src/daemon.rs"),
];
/// What carries a result, and is no part of one.
const CARRIERS: &[&str] = &["Request", "Response", "CallError"];
const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/control-protocol.md");
/// The part that is made here, to the end of the page.
const HEAD: &str = "## Fields\n\n\
    This part is made by a test of the types; `PINSTRIPE_WRITE_DOCS=1 cargo test -p pinstripe-control --test fields` writes it anew.\n\
    Fields may be added, see [versions](#versions). Numbers are whole. Where a field can be null, there may be nothing to say.\n";

/// A type that travels as a result or a part of one.
struct Fields {
    name: String,
    about: String,
    /// Name, type and what is said of it.
    rows: Vec<(String, String, String)>,
}

/// All of a source.
fn types(source: &str) -> Vec<Fields> {
    let mut all = Vec::new();
    let (mut about, mut is_sent) = (String::new(), false);
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        if let Some(text) = said(line) {
            join(&mut about, text);
        } else if line.starts_with("#[derive(") {
            is_sent = line.contains("Serialize");
        } else if let Some(name) = line.strip_prefix("pub struct ").and_then(|line| line.strip_suffix(" {")) {
            let fields = lines.by_ref().take_while(|line| *line != "}");
            let rows = rows(fields);
            if is_sent && !name.ends_with("Parameters") && !CARRIERS.contains(&name) {
                all.push(Fields { name: name.to_owned(), about: about.clone(), rows });
            }
            (about, is_sent) = (String::new(), false);
        } else if !line.starts_with("#[") {
            (about, is_sent) = (String::new(), false);
        }
    }
    all
}

fn rows<'a>(fields: impl Iterator<Item = &'a str>) -> Vec<(String, String, String)> {
    let (mut rows, mut about) = (Vec::new(), String::new());
    for line in fields.map(str::trim) {
        if let Some(text) = said(line) {
            join(&mut about, text);
        } else if let Some((name, kind)) = line.strip_prefix("pub ").and_then(|line| line.split_once(": ")) {
            rows.push((name.to_owned(), kind.trim_end_matches(',').to_owned(), std::mem::take(&mut about)));
        }
    }
    rows
}

/// What a line of documentation says.
fn said(line: &str) -> Option<&str> {
    line.trim().strip_prefix("///").map(str::trim)
}

fn join(about: &mut String, text: &str) {
    if !about.is_empty() {
        about.push(' ');
    }
    about.push_str(text);
}

/// A type as JSON has it.
fn in_words(kind: &str, all: &[Fields]) -> String {
    let inner = |outer: &str| kind.strip_prefix(outer).and_then(|rest| rest.strip_suffix('>'));
    if let Some(inner) = inner("Option<") {
        return format!("{} or null", in_words(inner, all));
    }
    if let Some(inner) = inner("Vec<") {
        return format!("list: {}", in_words(inner, all));
    }
    if let Some(inner) = inner("BTreeMap<String, ") {
        return format!("by name: {}", in_words(inner, all));
    }
    match kind {
        "u16" | "u32" | "u64" | "usize" | "i64" => "number".to_owned(),
        "bool" => "true or false".to_owned(),
        // Of each reload's change the words stand above.
        "String" | "PathBuf" | "Effect" => "text".to_owned(),
        "Recorded" => "array (see `record`)".to_owned(),
        name if all.iter().any(|fields| fields.name == name) => {
            format!("[{name}](#{})", name.to_lowercase())
        }
        other => panic!("how is {other} to be told?"),
    }
}

/// The part of the page.
fn page() -> String {
    let all: Vec<Fields> = SOURCES.iter().flat_map(|source| types(source)).collect();
    let mut page = HEAD.to_owned();
    for Fields { name, about, rows } in &all {
        let plain = |text: &str| text.replace("[`", "`").replace("`]", "`");
        let _ = write!(
            page,
            "\n### {name}\n\n{}\n\n| field | value | what it says |\n|---|---|---|\n",
            plain(about)
        );
        for (field, kind, about) in rows {
            let _ = writeln!(page, "| `{field}` | {} | {} |", in_words(kind, &all), plain(about));
        }
    }
    page
}

#[test]
fn the_page_of_the_protocol_has_all_fields_of_all_results() {
    let document = std::fs::read_to_string(DOCUMENT).unwrap();
    let (before, found) = document.split_at(document.find("## Fields\n").unwrap_or(document.len()));
    let wanted = page();
    for name in ["Event", "CheckResult", "SyncResult", "Status", "Detail", "Member", "DiskHealth"] {
        assert!(wanted.contains(&format!("\n### {name}\n")), "{name}");
    }
    if std::env::var_os("PINSTRIPE_WRITE_DOCS").is_some() {
        std::fs::write(DOCUMENT, format!("{before}{wanted}")).unwrap();
    } else {
        assert!(found == wanted, "docs/control-protocol.md is old: see its part \"Fields\"");
    }
}
