{{- define "millrace.labels" -}}
app.kubernetes.io/name: millrace
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "millrace.name" -}}
{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- /* A value of the configuration in TOML: JSON strings, numbers and booleans are TOML too. */ -}}
{{- define "millrace.value" -}}
{{ if kindIs "float64" . }}{{ int64 . }}{{ else }}{{ toJson . }}{{ end }}
{{- end }}
