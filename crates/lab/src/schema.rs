//! JSON schemas of the files that users write, generated from the declarations that check these files.

use serde_json::{Map, Value, json};

use crate::configure::SETTINGS;
use crate::machine::Machine;
use crate::settings::Takes;
use crate::study::registry;
use crate::study::workload::{Declaration, Workload};

const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

/// The schema of a machine's description.
#[must_use]
pub fn machine() -> Value {
    let mut schema = schemars::schema_for!(Machine).to_value();
    schema["title"] = json!("A machine of framewright");
    schema
}

/// The schema of a study.
#[must_use]
pub fn study() -> Value {
    let text = |about: &str| json!({ "type": "string", "description": about });
    let settings = json!({ "$ref": "#/$defs/settings" });
    json!({
        "$schema": DIALECT, "title": "A study of framewright", "type": "object", "additionalProperties": false,
        "required": ["variant", "part"],
        "properties": {
            "name": text("The name it is chosen by; the file's name, if it is left out."),
            "year": { "type": "integer", "description": "When the change that it is about was published." },
            "short": text("What it asks, in a few words."),
            "question": text("What it asks."),
            "unpredicted": {
                "type": "array", "items": { "type": "string" },
                "description": "Published figures that no part predicts, each with the reason.",
            },
            "machine": text("Machine of derived and simulated parts: a name that `framewright machines` lists."),
            "baseline": text("The variant that the others are compared with; the first, if it is left out."),
            "style": {
                "enum": styles(), "description": "Whose tables its results are shown in.",
            },
            "config": settings,
            "variant": {
                "type": "array",
                "items": {
                    "type": "object", "additionalProperties": false, "required": ["name"],
                    "properties": {
                        "name": text("Name of its column."),
                        "about": text("What it does, in a sentence."),
                        "config": settings,
                    },
                },
            },
            "part": { "type": "array", "items": part() },
        },
        "$defs": { "settings": configuration() },
    })
}

/// The schema of a part of a study.
fn part() -> Value {
    let text = |about: &str| json!({ "type": "string", "description": about });
    let published = json!({
        "type": "object", "additionalProperties": false, "required": ["mean"],
        "description": "What the study's authors printed for their baseline.",
        "properties": { "mean": { "type": "number" }, "stddev": { "type": "number" } },
    });
    let workloads: Vec<&Declaration> = registry::all().map(Workload::declaration).collect();
    json!({
        "type": "object", "additionalProperties": false,
        "properties": {
            "name": text("Name of its table."),
            "about": text("What it does, in a sentence."),
            "kinds": {
                "type": "array", "items": { "enum": ["measured", "simulated", "derived"] },
                "description": "Ways in which it is run; all that its workload has, if it is left out.",
            },
            "workload": {
                "description": "What it runs; `framewright workloads` explains each.",
                "oneOf": workloads.iter().map(|declared| workload(declared)).collect::<Vec<_>>(),
            },
            "headline": text("The metric that a summary shows."),
            "source": text("Where its published figures come from."),
            "vary": {
                "type": "object", "propertyNames": { "enum": names() },
                "additionalProperties": { "type": "array" },
                "description": "Settings that it runs with each of several values.",
            },
            "metric": {
                "type": "array",
                "description": "What it reports: all that its workload reports, if nothing is named.",
                "items": {
                    "type": "object", "additionalProperties": false, "required": ["name"],
                    "properties": {
                        "name": text("Name without parameters."),
                        "unit": text("As the workload declares it."),
                        "better": { "enum": ["lower", "higher", "none"] },
                        "published": published,
                        "changed": {
                            "type": "object", "additionalProperties": published,
                            "description": "What they printed for other variants, by name.",
                        },
                    },
                },
            },
        },
        "allOf": workloads.iter().map(|declared| metrics(declared)).collect::<Vec<_>>(),
    })
}

fn names() -> Vec<&'static str> {
    SETTINGS.iter().map(|setting| setting.name).collect()
}

fn styles() -> Vec<String> {
    use clap::ValueEnum as _;
    let names = framewright_report::table::Style::value_variants()
        .iter()
        .filter_map(clap::ValueEnum::to_possible_value);
    names.map(|value| value.get_name().to_owned()).collect()
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
