use super::html;
use crate::host::Host;
use crate::result::{Better, Document, Kind, Part, StudyText};
use crate::table::{Options, Style};

/// A part for every way to draw one, and text that would break a page that did not escape it.
fn document() -> Document {
    let host = Host { cpu: "<b>&amp;".to_owned(), ..Host::default() };
    let mut curve = Part::new("validation", "bulk", Kind::Simulated, "xeon").baseline("linux").variant("new");
    for cores in [1, 2, 4, 26] {
        for order in [0, 9] {
            let name = format!("bulk_get_ns[order={order},cores={cores}]");
            let base = f64::from(90 * cores + order);
            curve
                .metric(name, "ns", Better::Lower)
                .sample("linux", base)
                .interval("linux", base * 0.8, base * 1.3)
                .sample("new", base / 2.0);
        }
    }
    let mut shares =
        Part::new("pcp-reset", "structure", Kind::Derived, "rome").baseline("vanilla").variant("reset");
    for (name, vanilla, reset) in
        [("lists[batch=7,high=42]", 512.0, 0.0), ("lists[batch=63,high=378]", 256.0, 768.0)]
    {
        shares.metric(name, "1", Better::None).sample("vanilla", vanilla).sample("reset", reset).share();
    }
    let mut bars =
        Part::new("pcp-reset", "<script>", Kind::Measured, "host").baseline("vanilla").variant("a\"b");
    bars.note("Quotes \" and <tags> & more.");
    bars.metric("ns_per_operation", "ns", Better::Lower)
        .samples("vanilla", [9.0, 10.0, 11.0])
        .samples("a\"b", [4.0, 5.0]);
    Document::new("study all", host).with(curve).with(shares).with(bars)
}

#[test]
fn everything_that_was_found_is_on_the_page() {
    let page = html(&document(), Style::Framewright, Options::default());
    assert!(page.contains("<script type=\"application/json\" id=\"data\">{\n"), "all of it can be saved");
    for metric in document().results.iter().flat_map(|part| &part.metrics) {
        assert!(page.contains(&metric.name), "{} is in a table", metric.name);
    }
    // A curve for each order, a stacked bar and a plain one for each variant.
    assert_eq!(page.matches("<svg viewBox=\"0 0 480").count(), 2);
    assert_eq!(page.matches("class=\"band\"").count(), 2, "the variant with an interval, for each order");
    assert_eq!(page.matches("track stack").count(), 2);
    assert_eq!(page.matches("class=\"dot\"").count(), 5, "every sample");
    let whiskers = ["interval of the prediction", "middle nine tenths of the samples"];
    assert_eq!(whiskers.map(|what| page.matches(&format!("whiskers: the {what}.")).count()), [2, 1]);
    for kind in ["badge simulated", "badge derived", "badge measured"] {
        assert!(page.matches(kind).count() >= 3, "{kind} at the contents, the heading and the plot");
    }
}

/// A study's answer is drawn outside all folds, as bars that need no legend.
#[test]
fn what_the_summary_names_is_drawn_in_sight() {
    let mut document = document();
    document.results[0].headline = Some("bulk_get_ns[order=9,cores=26]".to_owned());
    document.results[2].headline = Some("ns_per_operation".to_owned());
    let page = html(&document, Style::Framewright, Options::default());
    let in_sight = |study: &str| {
        let section = page.split(&format!("id=\"{study}\"")).nth(1).expect("it has a section");
        section.split("<article").next().expect("a part").to_owned()
    };
    let section = in_sight("validation");
    assert_eq!(
        (section.matches("class=\"bar\"").count(), section.matches("<svg").count()),
        (2, 0),
        "{section}"
    );
    assert!(section.contains("bulk get, order 9, cores 26") && !section.contains("legend"), "{section}");
    let bars = in_sight("pcp-reset");
    assert_eq!(bars.matches("class=\"bar\"").count(), 2, "a bar for each variant");
    assert!(bars.contains("time of an operation") && !bars.contains("lists["));
}

/// Parts of a study may differ in what they compare with.
#[test]
fn a_baseline_of_some_parts_is_named_with_them() {
    let mut document = document();
    let named = ["linux", "new", "vanilla"].map(|name| (name.to_owned(), String::new()));
    let text =
        |name: &str| StudyText { name: name.to_owned(), variants: named.to_vec(), ..StudyText::default() };
    document.studies = ["validation", "pcp-reset"].map(text).to_vec();
    document.results.push(Part { baseline: "new".to_owned(), ..document.results[0].clone() });
    document.results[3].part = "again".to_owned();
    let page = html(&document, Style::Framewright, Options::default());
    for name in ["linux (baseline of bulk)", "new (baseline of again)", "vanilla (baseline)"] {
        assert!(page.contains(&format!("<dt>{name}</dt>")), "{name}");
    }
}

#[test]
fn the_page_needs_nothing_else_and_escapes_what_it_shows() {
    let page = html(&document(), Style::Framewright, Options::default());
    for outside in ["http:", "https:", "<script src", "<link", "<img", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.contains("&lt;b&gt;&amp;amp;"));
    assert!(page.contains("a&quot;b: 4.50"));
    let ids: Vec<&str> = page.split(" id=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    for target in page.split("href=\"#").skip(1).filter_map(|rest| rest.split('"').next()) {
        assert_eq!(ids.iter().filter(|id| **id == target).count(), 1, "one place named {target}");
    }
}

#[test]
fn a_page_of_nothing_is_a_page() {
    let page = html(&Document::new("bench", Host::default()), Style::Lkp, Options::default());
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>"));
}

#[test]
fn every_style_has_a_page() {
    for style in
        [Style::Mmtests2011, Style::Mmtests2019, Style::Mmtests2024, Style::Lkp, Style::DeferredInit2020]
    {
        assert!(html(&document(), style, Options::default()).contains("<table>"), "{style:?}");
    }
}
