//! The schemas against all files that ship, by a validator of as much of the language as they use.

use std::fs;
use std::path::Path;

use framewright_lab::schema::{machine, study};
use serde_json::{Value, json};

/// The first thing about `value` that the schema does not allow, and where.
#[expect(clippy::too_many_lines, reason = "one passage for each keyword of the language")]
fn fault(root: &Value, schema: &Value, value: &Value, at: &str) -> Option<String> {
    let known = [
        "$schema",
        "$defs",
        "$ref",
        "title",
        "description",
        "type",
        "properties",
        "additionalProperties",
        "required",
        "enum",
        "const",
        "items",
        "oneOf",
        "anyOf",
        "allOf",
        "if",
        "then",
        "minimum",
        "maximum",
        "pattern",
        "propertyNames",
        "format",
        "default",
    ];
    if let Some(bool) = schema.as_bool() {
        return (!bool).then(|| format!("{at}: not allowed"));
    }
    for word in schema.as_object().expect("a schema").keys() {
        assert!(known.contains(&word.as_str()), "the validator does not know `{word}`");
    }
    let check = |schema: &Value, value: &Value, at: &str| fault(root, schema, value, at);
    if let Some(name) = schema["$ref"].as_str() {
        let target = root.pointer(name.trim_start_matches('#')).expect("a definition");
        if let Some(fault) = check(target, value, at) {
            return Some(fault);
        }
    }
    let has_type = |name: &str| match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        unknown => panic!("type {unknown}"),
    };
    let types = &schema["type"];
    let fits = types
        .as_str()
        .map(has_type)
        .or_else(|| Some(types.as_array()?.iter().any(|name| has_type(name.as_str().expect("a name")))));
    if fits == Some(false) {
        return Some(format!("{at}: {value} is no {types}"));
    }
    let outside = |bound: Option<f64>, sign: f64| {
        bound.zip(value.as_f64()).is_some_and(|(bound, value)| sign * (value - bound) > 0.0)
    };
    if outside(schema["minimum"].as_f64(), -1.0) || outside(schema["maximum"].as_f64(), 1.0) {
        return Some(format!("{at}: {value} is out of range"));
    }
    if schema["enum"].as_array().is_some_and(|values| !values.contains(value))
        || schema.get("const").is_some_and(|only| only != value)
    {
        return Some(format!("{at}: {value} is none of what is allowed"));
    }
    // Of the form ^(a|b)(\[.*\])?$.
    if let (Some(pattern), Some(text)) = (schema["pattern"].as_str(), value.as_str()) {
        let names = pattern.trim_start_matches("^(").split(')').next().expect("a list");
        if !names.split('|').any(|name| text.split('[').next() == Some(name)) {
            return Some(format!("{at}: {text} does not match {pattern}"));
        }
    }
    for (list, least, most) in [("oneOf", 1, 1), ("anyOf", 1, usize::MAX), ("allOf", usize::MAX, usize::MAX)]
    {
        let Some(all) = schema[list].as_array() else { continue };
        let faults: Vec<String> = all.iter().filter_map(|schema| check(schema, value, at)).collect();
        let fitting = all.len() - faults.len();
        if fitting < least.min(all.len()) || fitting > most {
            return Some(format!("{at}: {list}: {}", faults.join("; ")));
        }
    }
    if let (Some(condition), Some(then)) = (schema.get("if"), schema.get("then"))
        && check(condition, value, at).is_none()
        && let Some(fault) = check(then, value, at)
    {
        return Some(fault);
    }
    if let (Some(items), Some(values)) = (schema.get("items"), value.as_array()) {
        let mut faults =
            values.iter().zip(0..).filter_map(|(value, n)| check(items, value, &format!("{at}[{n}]")));
        if let Some(fault) = faults.next() {
            return Some(fault);
        }
    }
    let object = value.as_object()?;
    for name in schema["required"].as_array().into_iter().flatten() {
        if !object.contains_key(name.as_str().expect("a name")) {
            return Some(format!("{at}: {name} is missing"));
        }
    }
    for (name, value) in object {
        let at = format!("{at}.{name}");
        let found = schema["properties"].get(name).or_else(|| schema.get("additionalProperties"));
        let fault = found.and_then(|schema| check(schema, value, &at));
        let named = schema.get("propertyNames").and_then(|schema| check(schema, &json!(name), &at));
        if let Some(fault) = fault.or(named) {
            return Some(fault);
        }
    }
    None
}

/// The first thing about a TOML text that the schema does not allow.
pub(crate) fn checked(schema: &Value, text: &str) -> Option<String> {
    let value: toml::Table = toml::from_str(text).expect("TOML");
    fault(schema, schema, &serde_json::to_value(value).expect("JSON"), "")
}

/// The TOML files of a folder that ships: name and text.
fn shipped(folder: &str) -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder);
    let entries = fs::read_dir(root).expect("it ships").map(|entry| entry.expect("readable").path());
    let files = entries.filter(|path| path.extension().is_some_and(|end| end == "toml"));
    files.map(|path| (path.display().to_string(), fs::read_to_string(path).expect("text"))).collect()
}

#[test]
fn every_file_that_ships_fits_its_schema() {
    for (schema, folder) in [(study(), "studies"), (machine(), "machines")] {
        let files = shipped(folder);
        assert!(files.len() > 5, "{folder}: {}", files.len());
        for (name, text) in files {
            assert_eq!(checked(&schema, &text), None, "{name}");
        }
    }
}

#[test]
fn what_the_checks_refuse_does_not_fit() {
    let text = |workload: &str, metric: &str, config: &str| {
        format!(
            "config = {{ {config} }}\n[[variant]]\nname = \"a\"\n[[part]]\nworkload = {{ {workload} }}\n\
             [[part.metric]]\nname = \"{metric}\"\n"
        )
    };
    let schema = study();
    let good = text("name = \"bulk\", order = 3", "alloc_ns", "batch = 7");
    assert_eq!(checked(&schema, &good), None);
    for (workload, metric, config) in [
        ("name = \"bulk\", ordr = 3", "alloc_ns", ""),
        ("name = \"bulk\", order = 11", "alloc_ns", ""),
        ("name = \"bulks\"", "alloc_ns", ""),
        ("name = \"bulk\"", "alloc_nanos", ""),
        ("name = \"bulk\"", "alloc_ns", "bach = 7"),
        ("name = \"bulk\"", "alloc_ns", "lock_kind = \"mcs\""),
        ("name = \"initialise\", fragmented = 1", "init_gbps", ""),
    ] {
        let text = text(workload, metric, config);
        assert!(checked(&schema, &text).is_some(), "{text}");
    }
    assert!(checked(&schema, &format!("nme = \"x\"\n{good}")).is_some());
    assert!(checked(&schema, "[[variant]]\nname = \"a\"\n").is_some_and(|fault| fault.contains("part")));
    let rome = include_str!("../../../../machines/epyc-7742-2s.toml");
    let schema = machine();
    assert!(checked(&schema, &rome.replace("sockets = 2", "sockets = \"two\"")).is_some());
    assert!(checked(&schema, &rome.replace("pause =", "pose =")).is_some());
    assert!(checked(&schema, &rome.replace("sockets = 2", "")).is_some());
}
