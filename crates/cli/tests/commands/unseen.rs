//! Names with invisible characters, or characters that change the text direction: a person sees
//! them escaped, a program gets the name as it is.

use crate::support::on_every_engine;

/// Without escapes, the second would look like the first, or like another name.
const ENTITY: &str = "user\u{202e}321-\u{200b}";
const SHOWN: &str = "user\\u{202e}321-\\u{200b}";

#[tokio::test(flavor = "multi_thread")]
async fn names_are_spelled_out_for_people_and_exact_for_programs() {
    on_every_engine(async |shell| {
        let acquire = ["acquire", ENTITY, "r", "--consume", "rpm=1", "--limit", "rpm=5/never"];
        for (words, code) in [
            (&acquire[..], 0),
            (&["process", "--once"], 0),
            (&["status", ENTITY], 0),
            (&["status", "--resource", "r"], 0),
            (&["status", "nobody", ENTITY], 1),
            (&["entity", "show", ENTITY], 1),
            (&["entity", "create", ENTITY, "--parent", "p"], 0),
            (&["entity", "children", "p"], 0),
            (&["entity", "children", ENTITY], 0),
            (&["limits", "set", "--entity", ENTITY, "rpm=5/min"], 0),
            (&["limits", "delete", "--entity", ENTITY, "rpm"], 2),
            (&["usage", ENTITY], 0),
            (&["usage", ENTITY, "--chart"], 0),
            (&["entity", "delete", ENTITY, "--yes"], 0),
            // Records that are not counted yet differ, or are not checked.
            (&acquire, 0),
            (&["usage", "check", ENTITY], 1),
        ] {
            let said = shell.run_words(words);
            let all = format!("{}{}", said.out, said.err);
            assert_eq!(said.code, code, "{words:?}: {all}");
            assert!(!all.contains(['\u{202e}', '\u{200b}']), "{words:?}: {all}");
            assert!(
                all.contains(SHOWN) || ["--once", "nobody"].contains(&words[1]),
                "{words:?}: {all}"
            );
        }
        let usage = shell.run_words(&["usage", ENTITY, "--output", "json"]).json(0);
        assert_eq!(usage[0]["entity"], ENTITY);
        let csv = shell.run_words(&["usage", ENTITY, "--output", "csv"]);
        assert!(csv.text(0).contains(ENTITY) && csv.out.contains("\r\n"), "{}", csv.out);
    })
    .await;
}
