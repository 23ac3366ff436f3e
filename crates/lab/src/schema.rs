//! JSON schemas of the files that users write, generated from the declarations that check these files.

use serde_json::{Map, Value, json};

use crate::configure::SETTINGS;
use crate::machine::Machine;
use crate::settings::Takes;
use crate::study::workload::{Declaration, Workload};
use crate::study::{Plan, registry};

/// The schema of a machine's description.
pub fn machine() -> Value {
    let mut schema = schemars::schema_for!(Machine).to_value();
    schema["title"] = json!("A machine of framewright");
    schema
}

/// The schema of a study: what its file is read into, with the settings and the workloads that there are.
pub fn study() -> Value {
    let mut schema = schemars::schema_for!(Plan).to_value();
    let workloads: Vec<&Declaration> = registry::all().map(Workload::declaration).collect();
    let definitions = &mut schema["$defs"];
    definitions["settings"] = configuration();
    // A field whose schema is made by hand counts as required there, even if it is an option.
    definitions["metric"]["required"] = json!(["name"]);
    let part = &mut definitions["part"];
    part["required"] = json!([]);
    part["properties"]["workload"] = json!({
        "description": "What it runs; `framewright workloads` explains each.",
        "oneOf": workloads.iter().map(|declared| workload(declared)).collect::<Vec<_>>(),
    });
    let names: Vec<&str> = SETTINGS.iter().map(|setting| setting.name).collect();
    part["properties"]["vary"]["propertyNames"] = json!({ "enum": names });
    part["allOf"] = workloads.iter().map(|declared| metrics(declared)).collect();
    schema
}

/// Schema of the values of a setting or a key.
fn taken(takes: Takes) -> Value {
    match takes {
        Takes::Words(words) => {
            // `descriptor_bytes = 64` is as good as "64".
            let plain = words.iter().filter_map(|word| serde_json::from_str(word).ok());
            json!({ "enum": words.iter().map(|word| json!(word)).chain(plain).collect::<Vec<Value>>() })
        }
        Takes::Whole(least, most) => json!({ "type": "integer", "minimum": least, "maximum": most }),
        Takes::Number(least, most) => json!({ "type": "number", "minimum": least, "maximum": most }),
        Takes::Flag => json!({ "type": "boolean" }),
        Takes::FileOr(_) => json!({ "type": "string" }),
        Takes::Form(_) => json!({ "type": ["string", "integer", "number", "boolean"] }),
    }
}

/// All settings.
fn configuration() -> Value {
    let mut properties = Map::new();
    for setting in SETTINGS {
        let mut value = taken(setting.takes);
        value["description"] = json!(setting.about);
        properties.insert(setting.name.to_owned(), value);
    }
    json!({
        "type": "object", "additionalProperties": false, "properties": properties,
        "description": "Settings of the allocator; `framewright settings` explains each.",
    })
}

/// The keys of a workload.
fn workload(declared: &Declaration) -> Value {
    let mut properties = Map::new();
    properties.insert("name".to_owned(), json!({ "const": declared.name }));
    let mut required = vec!["name"];
    for key in declared.keys {
        let mut value = taken(key.takes);
        value["description"] = json!(key.about);
        match key.default {
            Some(default) => value["description"] = json!(format!("{} Default: {default}.", key.about)),
            None => required.push(key.name),
        }
        properties.insert(key.name.to_owned(), value);
    }
    json!({
        "type": "object", "description": declared.about, "additionalProperties": false, "required": required,
        "properties": properties,
    })
}

/// The metrics that a part with this workload may name.
fn metrics(declared: &Declaration) -> Value {
    let names: Vec<&str> = declared.metrics.iter().map(|metric| metric.name).collect();
    json!({
        "if": {
            "required": ["workload"],
            "properties": { "workload": { "required": ["name"], "properties": { "name": { "const": declared.name } } } },
        },
        "then": {
            "properties": {
                "metric": {
                    "items": { "properties": { "name": { "pattern": format!("^({})(\\[.*\\])?$", names.join("|")) } } },
                },
            },
        },
    })
}
