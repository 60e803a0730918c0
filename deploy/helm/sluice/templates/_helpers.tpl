{{- define "sluice.fullname" -}}
{{- if eq .Release.Name .Chart.Name -}}
{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}
{{- end -}}
{{- end -}}

{{- define "sluice.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "sluice.labels" -}}
{{ include "sluice.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "sluice.tls" -}}
{{- if .Values.tls.secretName }}, tls: { cert: /etc/sluice-tls/tls.crt, key: /etc/sluice-tls/tls.key }{{- end -}}
{{- end -}}

{{- define "sluice.scheme" -}}
{{- if .Values.tls.secretName }}, scheme: HTTPS{{- end -}}
{{- end -}}

{{- define "sluice.secret" -}}
{{ .Values.secrets.existingSecret | default (include "sluice.fullname" .) }}
{{- end -}}
