//! The report in a real browser: what a reader sees at each width and setting, asked of the page itself.
//!
//! Needs Chromium, whose path `FRAMEWRIGHT_CHROMIUM` says; `./test` installs it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use framewright_report::host::Host;
use framewright_report::html;
use framewright_report::result::{Better, Document, Kind, Part};
use framewright_report::table::{Options, Style};
use framewright_trace::output::Output;

/// Loads the report in a frame and writes down, as `name=value` lines, what a reader would find.
const PROBE: &str = r#"<!DOCTYPE html><iframe id="frame" src="report.html" style="border:0;width:WIDTHpx;height:4000px"></iframe>
<pre id="said"></pre><script>
frame.onload = () => {
  const page = frame.contentDocument, view = frame.contentWindow, said = [];
  const say = (name, value) => said.push(name + "=" + value);
  say("overflow", page.documentElement.scrollWidth - page.documentElement.clientWidth);
  say("background", view.getComputedStyle(page.documentElement).backgroundColor);
  page.querySelectorAll("details").forEach(fold => fold.open = true);
  say("overflow_open", page.documentElement.scrollWidth - page.documentElement.clientWidth);
  const drawn = [...page.querySelectorAll("figure svg[role=group], .bar")].map(plot => plot.getBoundingClientRect());
  say("plots", drawn.length);
  say("plots_without_size", drawn.filter(box => box.width < 100 || box.height < 10).length);
  const names = [...page.querySelectorAll("[role=img], [role=group], [role=region]")];
  say("unnamed", names.filter(shape => !shape.getAttribute("aria-label")).length);
  const stops = [...page.querySelectorAll("a[href], summary, [tabindex='0']")];
  say("stops", stops.length);
  say("unreachable", stops.filter(stop => { stop.focus(); return page.activeElement !== stop; }).length);
  const lit = [...page.querySelectorAll(".point[tabindex='0']")].filter(point => {
    point.focus();
    return view.getComputedStyle(point.querySelector(".tip")).visibility === "visible";
  });
  say("points_that_speak", lit.length + "/" + page.querySelectorAll(".point[tabindex='0']").length);
  const colours = new Set([...page.querySelectorAll(".line")].map(line => view.getComputedStyle(line).stroke));
  say("colours", colours.size);
  said.push("end=1");
  document.getElementById("said").textContent = said.join("\n");
};
</script>"#;

fn document() -> Document {
    let mut curve =
        Part::new("validation", "bulk", Kind::Simulated, "xeon").baseline("linux").variant("changed");
    for cores in [1_u32, 2, 4, 8, 16, 26] {
        let base = f64::from(cores).powf(1.4) * 90.0;
        curve
            .metric(format!("bulk_get_ns[order=9,cores={cores}]"), "ns", Better::Lower)
            .sample("linux", base)
            .interval("linux", base * 0.8, base * 1.3)
            .sample("changed", base / 3.0);
    }
    let mut lists = Part::new("pcp-reset", "structure", Kind::Derived, "epyc-7742-2s").baseline("vanilla");
    for (name, count) in [("lists[batch=7,high=42]", 512.0), ("lists[batch=63,high=378]", 256.0)] {
        lists.metric(name, "1", Better::None).sample("vanilla", count).share();
    }
    let mut bars = Part::new("lock-line", "contend", Kind::Measured, "host").baseline("with_order0_lists");
    for n in 0..5 {
        bars.metric(format!("a_name_as_long_as_names_ever_get_ns[lock=kind_{n}]"), "ns", Better::Lower)
            .samples("with_order0_lists", [9.0, 10.0, 11.5])
            .samples("other_end", [4.0, 5.0, 4.5])
            .samples("own_line", [4.0, 4.1, 4.5])
            .samples("a_variant_of_a_user_with_a_long_name", [3.0, 5.0, 4.5]);
    }
    Document::new("study all", Host::probe()).with(curve).with(lists).with(bars)
}

/// What the probe found in a browser that has these further arguments.
fn look(chromium: &str, folder: &Path, width: u32, more: &[&str]) -> impl Fn(&str) -> String + use<> {
    fs::write(folder.join("probe.html"), PROBE.replace("WIDTH", &width.to_string()))
        .expect("the folder can be written");
    let profile = folder.join("profile");
    let output = Command::new(chromium)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-sync",
        ])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"])
        .args(["--allow-file-access-from-files", "--virtual-time-budget=10000", "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("--window-size={},4200", width.max(600) + 40))
        .args(more)
        .arg(format!("file://{}", folder.join("probe.html").display()))
        .output()
        .expect("FRAMEWRIGHT_CHROMIUM names a browser");
    let page = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        page.contains("end=1"),
        "the probe did not run: {page}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    move |name| {
        let line = page.lines().find_map(|line| line.split_once(&format!("{name}=")));
        let (_, value) = line.unwrap_or_else(|| panic!("{name} was asked: {page}"));
        value.trim_end_matches("</pre>").to_owned()
    }
}

#[test]
#[ignore = "needs Chromium: ./test installs it and runs this"]
fn a_browser_shows_the_report_at_every_width_and_in_the_dark() {
    let chromium =
        std::env::var("FRAMEWRIGHT_CHROMIUM").expect("FRAMEWRIGHT_CHROMIUM says where the browser is");
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("browser");
    fs::create_dir_all(&folder).expect("the target directory can be written");
    let page = Output::open(&folder.join("report.html")).expect("the folder can be written");
    html::write(&document(), Style::Framewright, Options::default(), page).expect("the page can be written");

    let dark = ["--blink-settings=preferredColorScheme=0"];
    let light = ["--blink-settings=preferredColorScheme=1"];
    for (width, more, background) in [
        (360, &light, "rgb(255, 255, 255)"),
        (360, &dark, "rgb(20, 23, 26)"),
        (1280, &light, "rgb(255, 255, 255)"),
    ] {
        let found = look(&chromium, &folder, width, more);
        let about = format!("{width} pixels wide, {more:?}");
        assert_eq!(found("background"), background, "{about}");
        for nothing in ["overflow", "overflow_open", "plots_without_size", "unnamed", "unreachable"] {
            assert_eq!(found(nothing), "0", "{nothing}, {about}");
        }
        // One curve, one stack, 5 groups of 4 bars.
        assert_eq!(found("plots"), "22", "{about}");
        assert_eq!(found("points_that_speak"), "12/12", "{about}");
        assert_eq!(found("colours"), "2", "{about}");
    }
}
