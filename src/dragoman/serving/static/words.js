"use strict";
// The words of the page in the first language of the browser that is known here. Messages of the server stay in English.

const PAGE_LANGUAGES = ["de", "fr", "zh"];
const WORDS = {
  "Translate": ["Übersetzen", "Traduire", "翻译"],
  "Your text stays on this server.": ["Ihr Text bleibt auf diesem Server.", "Votre texte reste sur ce serveur.", "您的文本不会离开这台服务器。"],
  "Languages": ["Sprachen", "Langues", "语言"],
  "From": ["Von", "De", "源语言"],
  "To": ["Nach", "Vers", "目标语言"],
  "Swap languages": ["Sprachen tauschen", "Inverser les langues", "互换语言"],
  "Swap languages (Alt+S)": ["Sprachen tauschen (Alt+S)", "Inverser les langues (Alt+S)", "互换语言（Alt+S）"],
  "Text": ["Text", "Texte", "原文"],
  "Type or paste a text": ["Text eingeben oder einfügen", "Saisissez ou collez un texte", "输入或粘贴文本"],
  "Clear": ["Leeren", "Effacer", "清空"],
  "Translation": ["Übersetzung", "Traduction", "译文"],
  "Copy": ["Kopieren", "Copier", "复制"],
  "Model": ["Modell", "Modèle", "模型"],
  "Examples": ["Beispiele", "Exemples", "示例"],
  "Files": ["Dateien", "Fichiers", "文件"],
  "Translate files": ["Dateien übersetzen", "Traduire des fichiers", "翻译文件"],
  "Or drop files on this page. Only their texts change.": ["Oder Dateien auf diese Seite ziehen. Nur ihre Texte ändern sich.", "Ou déposez des fichiers sur cette page. Seuls leurs textes changent.", "也可以把文件拖到此页面。只翻译其中的文本，其余内容不变。"],
  "Sentence": ["Satz", "Phrase", "句子"],
  "Alternatives": ["Alternativen", "Autres traductions", "其他译文"],
  "Show the attention of this sentence": ["Attention dieses Satzes zeigen", "Afficher l'attention de cette phrase", "显示此句的注意力"],
  "{name} ({percent} %)": ["{name} ({percent} %)", "{name} ({percent} %)", "{name}（{percent}%）"],
  "Detect language": ["Sprache erkennen", "Détecter la langue", "检测语言"],
  "No model translates {from} to {to}": ["Kein Modell übersetzt {from} nach {to}", "Aucun modèle ne traduit {from} vers {to}", "没有从{from}到{to}的模型"],
  "No model of this server translates texts. The API lists what it does.": ["Kein Modell dieses Servers übersetzt Texte. Die API listet auf, was er kann.", "Aucun modèle de ce serveur ne traduit de textes. L'API énumère ses fonctions.", "此服务器没有可翻译文本的模型。可用的功能见 API 页面。"],
  "To swap, choose the language of the text first": ["Wählen Sie zum Tauschen zuerst die Sprache des Textes", "Pour inverser, choisissez d'abord la langue du texte", "要互换语言，请先选择原文的语言"],
  "license {name}": ["Lizenz {name}", "licence {name}", "许可证 {name}"],
  "The server answered {status}.": ["Der Server hat mit {status} geantwortet.", "Le serveur a répondu {status}.", "服务器返回状态码 {status}。"],
  "{count} of {limit} characters": ["{count} von {limit} Zeichen", "{count} caractères sur {limit}", "{count} / {limit} 个字符"],
  "Translating": ["Wird übersetzt", "Traduction en cours", "正在翻译"],
  "The server cannot be reached. Your text is still here; try again.": ["Der Server ist nicht erreichbar. Ihr Text ist noch da; versuchen Sie es erneut.", "Le serveur est injoignable. Votre texte est toujours là ; réessayez.", "无法连接服务器。您的文本仍在，请重试。"],
  "The server cannot be reached.": ["Der Server ist nicht erreichbar.", "Le serveur est injoignable.", "无法连接服务器。"],
  "{count} of {total} sentences may be wrong": ["{count} von {total} Sätzen sind vielleicht falsch", "{count} phrases sur {total} sont peut-être fausses", "{total} 句中有 {count} 句可能有误"],
  "Copied": ["Kopiert", "Copié", "已复制"],
  "Progress of {name}": ["Fortschritt von {name}", "Progression de {name}", "{name} 的进度"],
  "Remove": ["Entfernen", "Retirer", "移除"],
  "Remove {name}": ["{name} entfernen", "Retirer {name}", "移除 {name}"],
  "{count} of {total} texts": ["{count} von {total} Texten", "{count} textes sur {total}", "{count} / {total} 条文本"],
  "Waiting": ["Wartet", "En attente", "等待中"],
  "Download {name}": ["{name} herunterladen", "Télécharger {name}", "下载 {name}"],
  ", {count} of them may be wrong": [", {count} davon sind vielleicht falsch", ", dont {count} peut-être faux", "，其中 {count} 条可能有误"],
  "{count} texts": ["{count} Texte", "{count} textes", "{count} 条文本"],
  "{name} is ready.": ["{name} ist fertig.", "{name} est prêt.", "{name} 已翻译完成。"],
  "The translation may be cut.": ["Die Übersetzung ist vielleicht abgeschnitten.", "La traduction est peut-être coupée.", "译文可能被截断。"],
  "The translation repeated itself.": ["Die Übersetzung hat sich wiederholt.", "La traduction s'est répétée.", "译文反复重复同样的内容。"],
  "The text was copied.": ["Der Text wurde kopiert.", "Le texte a été copié.", "译文照抄了原文。"],
  "The translation may be too short.": ["Die Übersetzung ist vielleicht zu kurz.", "La traduction est peut-être trop courte.", "译文可能过短。"],
  "The sentence is too long for the model.": ["Der Satz ist zu lang für das Modell.", "La phrase est trop longue pour le modèle.", "句子过长，模型无法处理。"],
  "The translation is empty.": ["Die Übersetzung ist leer.", "La traduction est vide.", "译文为空。"],
  "The text is in the target language already.": ["Der Text ist schon in der Zielsprache.", "Le texte est déjà dans la langue cible.", "原文已经是目标语言。"],
  "The text is in another script than its language.": ["Der Text hat eine andere Schrift als seine Sprache.", "Le texte est dans une autre écriture que sa langue.", "原文的文字不属于所选语言。"],
  "A number is missing.": ["Eine Zahl fehlt.", "Un nombre manque.", "译文缺少数字。"],
  "A web address is missing.": ["Eine Webadresse fehlt.", "Une adresse web manque.", "译文缺少网址。"],
  "An e-mail address is missing.": ["Eine E-Mail-Adresse fehlt.", "Une adresse e-mail manque.", "译文缺少电子邮件地址。"],
  "The length is unusual.": ["Die Länge ist ungewöhnlich.", "La longueur est inhabituelle.", "译文长度异常。"],
  "The translation is in another script.": ["Die Übersetzung ist in einer anderen Schrift.", "La traduction est dans une autre écriture.", "译文使用了另一种文字。"],
  "The model was not sure.": ["Das Modell war sich nicht sicher.", "Le modèle n'était pas sûr.", "模型没有把握。"],
  "A placeholder differs.": ["Ein Platzhalter weicht ab.", "Un paramètre diffère.", "占位符与原文不一致。"],
  "A tag differs.": ["Ein Tag weicht ab.", "Une balise diffère.", "标签与原文不一致。"],
  "A line break differs.": ["Ein Zeilenumbruch weicht ab.", "Un saut de ligne diffère.", "首尾的换行与原文不一致。"],
  "The translation is longer than the file allows.": ["Die Übersetzung ist länger, als die Datei erlaubt.", "La traduction est plus longue que le fichier ne le permet.", "译文超出文件允许的长度。"],
  "The subtitle has too many or too long lines.": ["Der Untertitel hat zu viele oder zu lange Zeilen.", "Le sous-titre a des lignes trop nombreuses ou trop longues.", "字幕行数过多或单行过长。"],
  "The subtitle is too fast to read.": ["Der Untertitel ist zu schnell zum Lesen.", "Le sous-titre est trop rapide à lire.", "字幕显示时间过短，来不及阅读。"],
  "The format cannot hold the text.": ["Das Format kann den Text nicht aufnehmen.", "Le format ne peut pas contenir le texte.", "该格式无法写入此译文。"],
  "The end of the sentence may be missing.": ["Das Ende des Satzes fehlt vielleicht.", "La fin de la phrase manque peut-être.", "译文可能缺少句尾。"],
  "A term of the glossary is missing.": ["Ein Begriff des Glossars fehlt.", "Un terme du glossaire manque.", "译文缺少术语表中的术语。"]
};

const pageLanguage = navigator.languages.map((code) => code.split("-")[0]).find((code) => code === "en" || PAGE_LANGUAGES.includes(code)) || "en";

// Return an English text in the language of the page, with values in the place of their {names}.
function words(english, values = {}) {
  const found = WORDS[english] && WORDS[english][PAGE_LANGUAGES.indexOf(pageLanguage)];
  return (found || english).replace(/\{(\w+)\}/g, (_, name) => (typeof values[name] === "number" ? values[name].toLocaleString(pageLanguage) : values[name]));
}

// Return the name of a language for readers of the page.
function nameLanguage(code, english) {
  try {
    return pageLanguage === "en" ? english : new Intl.DisplayNames([pageLanguage], { type: "language", fallback: "none" }).of(code) || english;
  } catch {
    return english;
  }
}

function translatePage() {
  const page = document.createTreeWalker(document.documentElement, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_TEXT);
  while (page.nextNode()) {
    const node = page.currentNode;
    if (node.nodeType === Node.TEXT_NODE) {
      if (node.data.trim() in WORDS) node.data = node.data.replace(node.data.trim(), words(node.data.trim()));
    } else {
      for (const name of ["placeholder", "title", "aria-label"]) {
        if (node.hasAttribute(name)) node.setAttribute(name, words(node.getAttribute(name)));
      }
    }
  }
  document.documentElement.lang = pageLanguage;
}

translatePage();
