{{- define "tenbin.fullname" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "tenbin.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tenbin.cluster" -}}
{{ .Values.cluster.name | default (include "tenbin.fullname" .) }}
{{- end }}

{{- define "tenbin.headless" -}}
{{ include "tenbin.fullname" . }}-headless.{{ .Release.Namespace }}.svc
{{- end }}

{{- define "tenbin.clusterSecret" -}}
{{ .Values.cluster.tlsSecret | default (printf "%s-cluster" (include "tenbin.fullname" .)) }}
{{- end }}

{{- define "tenbin.labels" -}}
{{ include "tenbin.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "tenbin.tokenSecret" -}}
{{- if .Values.admin.existingTokenSecret }}{{ .Values.admin.existingTokenSecret }}{{ else if .Values.admin.tokens }}{{ include "tenbin.fullname" . }}-tokens{{ end }}
{{- end }}

{{- define "tenbin.viewerSecret" -}}
{{- if .Values.podMonitor.enabled }}{{ .Values.podMonitor.tokenSecret.name | default (printf "%s-viewer" (include "tenbin.fullname" .)) }}{{ end }}
{{- end }}

{{- define "tenbin.adminIsOpen" -}}
{{- if or (include "tenbin.tokenSecret" .) (include "tenbin.viewerSecret" .) }}true{{ end }}
{{- end }}

{{- define "tenbin.adminScheme" -}}
{{ if .Values.admin.tlsSecret }}HTTPS{{ else }}HTTP{{ end }}
{{- end }}

{{- define "tenbin.passwordSecret" -}}
{{ .Values.existingPasswordSecret | default (printf "%s-passwords" (include "tenbin.fullname" .)) }}
{{- end }}
