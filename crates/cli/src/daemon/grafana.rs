//! Whether the dashboard of the package is what Grafana's schema says. Grafana isn't packaged for Debian, so
//! it can't be asked.
//!
//! The facts are of Grafana's own sources, version 10: the kind of a dashboard
//! (kinds/dashboard/dashboard_kind.cue), what its panels share (packages/grafana-schema/src/common), the
//! options of each panel (panelcfg.cue of its plugin), and Prometheus' query (dataquery.cue of its plugin).
//! Only what the dashboard uses, or could easily have wrong, stands here; what doesn't stand here is refused.

use std::collections::BTreeSet;

use serde_json::{Value, json};

const DASHBOARD: &str = include_str!("../../../../dist/grafana/pinstripe.json");

/// What a value has to be, as a value itself.
///
/// ```text
///   "text"       a text; "flag", "number", "count" (a whole number from 0 on), "null" likewise
///   "=a|b"       one of these texts
///   "1..24"      a whole number within these bounds
///   "x / y"      one of the two
///   [x]          a list of x
///   {k: x}       an object with k, and nothing that isn't named. "k?" may be missing, "*" is any other
/// ```
fn dashboard() -> Value {
    json!({
        "id": "null", "uid": "text", "title": "text", "description?": "text", "tags?": ["text"],
        // 36 is the first of which the schema speaks, and newer ones are migrated to by Grafana itself.
        "schemaVersion": "36..41", "version?": "count", "editable": "flag", "graphTooltip": "0..2",
        "timezone?": "text", "refresh?": "text", "time?": { "from": "text", "to": "text" }, "links?": [],
        "annotations?": { "list?": [] }, "templating?": { "list?": [variable()] }, "panels?": [panel()],
    })
}

fn variable() -> Value {
    json!({
        "name": "text", "label?": "text", "type": "=query|adhoc|constant|datasource|interval|textbox|custom|system",
        "hide": "0..2", "skipUrlSync": "flag", "query?": "text / object", "datasource?": source(),
        "definition?": "text", "refresh?": "0..2", "regex?": "text", "includeAll?": "flag", "multi?": "flag",
        "allValue?": "text", "current?": "object", "options?": [], "sort?": "0..8",
    })
}

fn source() -> Value {
    json!({ "type": "=prometheus", "uid": "text" })
}

/// Of any panel, without what depends on its kind.
fn panel() -> Value {
    json!({
        "id": "1..1000000", "type": "=row|stat|table|state-timeline|timeseries", "title?": "text",
        "description?": "text", "gridPos": { "h": "1..100", "w": "1..24", "x": "0..23", "y": "0..1000" },
        "datasource?": source(), "targets?": [query()], "options?": "object", "collapsed?": "flag", "panels?": [],
        "transformations?": [{ "id": "=organize", "options": "object" }],
        "fieldConfig?": { "overrides": [], "defaults": {
            "unit?": "=none|s|Bps|ops|iops|cps|percentunit|celsius", "noValue?": "text", "min?": "number",
            "max?": "number", "decimals?": "number", "custom?": "object",
            "color?": { "mode": "=thresholds|palette-classic|palette-saturated|continuous-GrYlRd|fixed",
                "fixedColor?": "text" },
            "thresholds?": { "mode": "=absolute|percentage",
                "steps": [{ "color": "text", "value": "number / null" }] },
            "mappings?": [{ "type": "=value", "options": {
                "*": { "text?": "text", "color?": "text", "index?": "count" } } }],
        } },
    })
}

fn query() -> Value {
    json!({
        "refId": "text", "datasource?": source(), "expr": "text", "instant?": "flag", "range?": "flag",
        "editorMode?": "=code|builder", "format?": "=time_series|table|heatmap", "legendFormat?": "text",
    })
}

/// The options of a panel of this kind, and what stands in `custom` of its fields.
fn of_kind(kind: &str) -> [Value; 2] {
    let legend = json!({ "displayMode": "=list|table|hidden", "placement": "=bottom|right", "showLegend": "flag",
        "calcs": ["text"] });
    let tooltip = json!({ "mode": "=single|multi|none", "sort": "=asc|desc|none" });
    match kind {
        "stat" => [
            json!({
                "graphMode": "=none|line|area", "colorMode": "=value|background|background_no_gradient|none",
                "justifyMode": "=auto|center", "textMode": "=auto|value|value_and_name|name|none",
                "orientation": "=auto|vertical|horizontal",
                "reduceOptions": { "calcs": ["text"], "fields?": "text", "values?": "flag" },
            }),
            json!({}),
        ],
        "table" => [json!({ "showHeader": "flag" }), json!({})],
        "state-timeline" => [
            json!({ "legend": legend, "tooltip": tooltip, "showValue": "=auto|never|always", "rowHeight": "number",
                "mergeValues?": "flag" }),
            json!({ "lineWidth?": "0..10", "fillOpacity?": "0..100" }),
        ],
        _ => [
            json!({ "legend": legend, "tooltip": tooltip }),
            json!({
                "drawStyle?": "=line|bars|points", "lineWidth?": "number", "fillOpacity?": "number",
                "showPoints?": "=auto|never|always", "spanNulls?": "flag / number",
                "scaleDistribution?": { "type": "=linear|log|ordinal|symlog", "log?": "number" },
            }),
        ],
    }
}

/// What is wrong with a value, with the paths to it.
fn wrong(value: &Value, shape: &Value, path: &str) -> Vec<String> {
    match (shape, value) {
        (Value::String(words), _) if words.split(" / ").any(|word| is(value, word)) => Vec::new(),
        (Value::Array(shapes), Value::Array(values)) => {
            let each = values.iter().enumerate().map(|(index, value)| (value, format!("{path}[{index}]")));
            let none = |path: String| vec![format!("{path} must not be there")];
            each.flat_map(|(value, path)| match shapes.first() {
                Some(shape) => wrong(value, shape, &path),
                None => none(path),
            })
            .collect()
        }
        (Value::Object(shapes), Value::Object(values)) => {
            let of = |key: &String| shapes.get(key).or(shapes.get(&format!("{key}?"))).or(shapes.get("*"));
            let own = values.iter().flat_map(|(key, value)| match of(key) {
                Some(shape) => wrong(value, shape, &format!("{path}.{key}")),
                None => vec![format!("{path}.{key} is not known")],
            });
            let is_missing = |key: &&String| !key.ends_with('?') && *key != "*" && !values.contains_key(*key);
            let missing = shapes.keys().filter(is_missing).map(|key| format!("{path}.{key} is missing"));
            own.chain(missing).collect()
        }
        _ => vec![format!("{path} is {value}, and not {shape}")],
    }
}

fn is(value: &Value, word: &str) -> bool {
    match word {
        "text" => value.is_string(),
        "flag" => value.is_boolean(),
        "number" => value.is_number(),
        "count" => value.is_u64(),
        "null" => value.is_null(),
        "object" => value.is_object(),
        _ => match (word.strip_prefix('='), word.split_once("..")) {
            (Some(texts), _) => value.as_str().is_some_and(|text| texts.split('|').any(|one| one == text)),
            (None, Some((least, most))) => {
                let within = least.parse().unwrap()..=most.parse().unwrap();
                value.as_u64().is_some_and(|number| within.contains(&number))
            }
            _ => panic!("the shape {word}"),
        },
    }
}

/// All that is wrong with a dashboard.
fn faults(own: &Value) -> Vec<String> {
    let mut all = wrong(own, &dashboard(), "dashboard");
    let variables: BTreeSet<&str> = names(&own["templating"]["list"]).collect();
    if names(&own["templating"]["list"]).count() != variables.len() {
        all.push("two variables have one name".to_owned());
    }
    let (mut ids, mut cells, mut y_of_row) = (BTreeSet::new(), BTreeSet::new(), 0);
    for (index, panel) in own["panels"].as_array().into_iter().flatten().enumerate() {
        let path = format!("dashboard.panels[{index}]");
        if !ids.insert(panel["id"].to_string()) {
            all.push(format!("{path}.id is another one's"));
        }
        let [x, y, width, height] =
            ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().unwrap_or(0).min(1000));
        let place = (x..x + width).flat_map(|x| (y..y + height).map(move |y| (x, y)));
        if x + width > 24 || place.into_iter().any(|cell| !cells.insert(cell)) {
            all.push(format!("{path} lies over another one, or is wider than the page"));
        }
        if y < y_of_row {
            all.push(format!("{path} stands above the row that it follows"));
        }
        if panel["type"] == "row" {
            y_of_row = y;
            if panel["collapsed"] != false || panel["panels"] != json!([]) {
                all.push(format!("{path} has its panels in itself, which are for one that is collapsed"));
            }
            continue;
        }
        let [options, custom] = of_kind(panel["type"].as_str().unwrap_or_default());
        all.extend(wrong(&panel["options"], &options, &format!("{path}.options")));
        let own = &panel["fieldConfig"]["defaults"]["custom"];
        if !own.is_null() {
            all.extend(wrong(own, &custom, &format!("{path}.fieldConfig.defaults.custom")));
        }
        let steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"].as_array();
        let steps: Vec<Option<f64>> =
            steps.into_iter().flatten().map(|step| step["value"].as_f64()).collect();
        if steps.first().is_some_and(Option::is_some) || !steps.is_sorted() {
            all.push(format!("{path}: the first threshold is of no value, and the others rise"));
        }
        let used = panel["targets"].as_array().into_iter().flatten().chain([panel]);
        for text in used.flat_map(|query| [&query["expr"], &query["datasource"]["uid"]]) {
            for name in text.as_str().into_iter().flat_map(referred) {
                // Names of two underscores are Grafana's own.
                if !variables.contains(&*name) && !name.starts_with("__") {
                    all.push(format!("{path} asks for ${name}, which is no variable"));
                }
            }
        }
    }
    all
}

fn names(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(|variable| variable["name"].as_str())
}

/// The variables of a text: `$name` and `${name}`.
fn referred(text: &str) -> impl Iterator<Item = String> {
    text.split('$').skip(1).map(|rest| {
        let rest = rest.trim_start_matches('{');
        rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect()
    })
}

fn own() -> Value {
    serde_json::from_str(DASHBOARD).unwrap()
}

#[test]
fn the_dashboard_is_as_grafanas_schema_says() {
    assert_eq!(faults(&own()), Vec::<String>::new());
}

/// Each is a dashboard that Grafana would show in part, or not at all.
#[test]
fn what_is_wrong_with_a_dashboard_is_found() {
    let panel = |kind: &str| {
        let panels = own()["panels"].as_array().unwrap().clone();
        panels.iter().position(|panel| panel["type"] == kind).unwrap()
    };
    let (row, stat, series) = (panel("row"), panel("stat"), panel("timeseries"));
    let defects: &[(String, Value, &str)] = &[
        ("/schemaVersion".into(), json!("39"), "schemaVersion"),
        ("/id".into(), json!(7), "dashboard.id"),
        ("/graphTooltip".into(), json!(3), "graphTooltip"),
        ("/templating/list/1/type".into(), json!("label"), "type is"),
        ("/templating/list/1/name".into(), json!("array"), "two variables"),
        ("/templating/list/2/name".into(), json!("other"), "$array, which is no variable"),
        (format!("/panels/{row}/collapsed"), json!(true), "collapsed"),
        (format!("/panels/{stat}/type"), json!("singlestat"), "type is"),
        (format!("/panels/{stat}/id"), json!(1), "is another one's"),
        (format!("/panels/{stat}/gridPos/w"), json!(0), "gridPos.w"),
        (format!("/panels/{stat}/gridPos/y"), json!(14), "lies over"),
        (format!("/panels/{stat}/gridPos/x"), json!(22), "wider"),
        (format!("/panels/{stat}/options/colorMode"), json!("red"), "colorMode"),
        (format!("/panels/{stat}/options/reduceOptions"), json!({}), "calcs is missing"),
        (format!("/panels/{stat}/fieldConfig/defaults/unit"), json!("bytes/s"), "unit"),
        (format!("/panels/{stat}/fieldConfig/defaults/thresholds/steps/0/value"), json!(1), "threshold"),
        (format!("/panels/{stat}/targets/0/expr"), json!(1), "expr"),
        (format!("/panels/{series}/options/legend/placement"), json!("top"), "placement"),
        (
            format!("/panels/{series}/fieldConfig/defaults/custom"),
            json!({ "drawstyle": "line" }),
            "drawstyle",
        ),
        (format!("/panels/{series}/targets/0"), json!({ "expr": "up" }), "refId is missing"),
        (format!("/panels/{series}/targets/0/datasource/uid"), json!("${source}"), "no variable"),
    ];
    for (pointer, value, words) in defects {
        let mut dashboard = own();
        *dashboard.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}")) = value.clone();
        let faults = faults(&dashboard);
        assert!(faults.iter().any(|fault| fault.contains(words)), "{pointer}: {faults:?}");
    }
}
