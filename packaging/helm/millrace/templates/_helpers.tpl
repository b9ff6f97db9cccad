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
{{- /* The bytes of `text`, a number and one of `units`; 0 if it is something else. */ -}}
{{- define "millrace.bytes" -}}
{{- $unit := regexFind "[A-Za-z]*$" .text -}}
{{- $number := trimSuffix $unit .text -}}
{{- if and (hasKey .units $unit) (regexMatch "^[0-9]+([.][0-9]+)?$" $number) -}}
{{ mulf (float64 $number) (get .units $unit) }}
{{- else -}}
0
{{- end }}
{{- end }}
{{- /* A size of the configuration in bytes: all units are powers of 1024. */ -}}
{{- define "millrace.size" -}}
{{- $text := . -}}
{{- if kindIs "float64" . }}{{ $text = int64 . | toString }}{{ end -}}
{{- $units := dict "" 1 "K" 1024 "M" 1048576 "G" 1073741824 "T" 1099511627776 -}}
{{ include "millrace.bytes" (dict "text" ($text | upper | trimSuffix "B" | trimSuffix "I") "units" $units) }}
{{- end }}
{{- /* Rejects a limit of memory that the exports in memory and the network buffers exceed: the kernel would kill the server. */ -}}
{{- define "millrace.checkMemory" -}}
{{- $limit := ((.Values.resources).limits).memory | default "" -}}
{{- if kindIs "float64" $limit }}{{ $limit = int64 $limit | toString }}{{ end -}}
{{- $units := dict "" 1 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 -}}
{{- $bytes := include "millrace.bytes" (dict "text" $limit "units" $units) | float64 -}}
{{- $buffers := include "millrace.size" ((.Values.config.limits).memory | default "1GiB") | float64 -}}
{{- $exports := 0.0 -}}
{{- range .Values.exports -}}
{{- if hasPrefix "memory:" .backend -}}
{{- $exports = addf $exports (include "millrace.size" (trimPrefix "memory:" .backend) | float64) -}}
{{- end -}}
{{- end -}}
{{- $needed := $buffers -}}
{{- if gt $exports 0.0 }}{{ $needed = addf $buffers (divf $buffers 8) $exports }}{{ end -}}
{{- if and (gt $bytes 0.0) (gt $needed $bytes) -}}
{{- $mib := divf $needed 1048576 | ceil | int64 -}}
{{- fail (printf "resources.limits.memory is %s, and exports in memory and network buffers (config.limits.memory) take %dMi: the kernel would kill the server; give it more than %dMi, or make the exports smaller" $limit $mib $mib) -}}
{{- end -}}
{{- end }}
